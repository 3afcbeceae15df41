"""What learns: several copies (one a seed) as one module.

transformer         linear, kernel and softmax attention alone
gpt2                transformers' own GPT-2 blocks
fused_attention     their attention in one kernel for all copies
constructed         gradient descent as the weights of linear attention
gpt2_construction   gradient descent as the weights of GPT-2
"""
