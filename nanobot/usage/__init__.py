"""What models were used and what it cost: the ledger of requests, prices, and spending limits.

Import `Ledger` from `ledger`, `PriceTable` from `prices`, `Budget` and `SpendingLimits` from `budget`, `sum_up` from
`sums`.
"""
