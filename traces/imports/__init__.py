"""Results of load generators and other simulators, as requests with our definitions of their times."""
