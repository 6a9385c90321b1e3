"""What ops cost: unit, analytic and calibrated tables, all of one type."""
