"""The readable interpreter: numpy, one function an operator, the oracle of every back end."""
