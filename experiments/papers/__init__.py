"""One file a published claim: the data printed, our number, and the verdict."""
