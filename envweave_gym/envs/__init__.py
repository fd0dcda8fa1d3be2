"""The Gymnasium environments and PettingZoo games, a folder for each family.

None of them uses the network.
"""
