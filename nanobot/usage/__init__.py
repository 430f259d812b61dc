"""What models have used and what it cost: a row for every request sent, the price of it, and how much may be spent.

Knows no provider and no config: providers/metered_provider.py counts, providers/spending.py maps the limits. Read in
this order: types, ledger, under_way, sums, prices, budget, raised.
"""
