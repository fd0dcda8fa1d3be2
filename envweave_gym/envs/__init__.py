"""The Gymnasium environments, one a file, without any network in them."""
