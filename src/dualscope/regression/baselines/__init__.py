"""What in-context learners are compared with.

spectrum     least squares, ridge, gradient descent, Newton's iteration; online gradient descent
lasso        for sparse functions
neighbours   k nearest examples
trees        greedy trees and gradient boosting
network      a two-layer network a prompt
"""
