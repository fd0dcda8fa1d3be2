"""Classes and functions under the names that older documents give them."""
