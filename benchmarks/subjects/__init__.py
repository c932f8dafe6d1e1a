"""Who is compared, one file for each."""
