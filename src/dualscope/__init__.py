"""dualscope: is in-context learning gradient descent?"""
