"""What is kept between runs, in folders of the user's own."""
