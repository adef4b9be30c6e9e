"""Version 1 of the contract: the `.proto` files and the code generated from them."""
