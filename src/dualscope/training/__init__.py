"""Training a small model that learns in context, on generated text: what ``dualscope train`` does.

Contents: ``corpus`` (training sequences), ``heldout`` (what training never shows), ``tokenizer``, ``settings``,
``checkpoint``, ``loop``, ``evaluation``.
"""
