"""What learns: several copies (one a seed) as one module.

transformer   linear, kernel and softmax attention alone
gpt2          transformers' own GPT-2 blocks, with the attention of all copies in one kernel
constructed   gradient descent as the weights of linear attention and of GPT-2
"""
