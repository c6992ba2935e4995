"""A tool that fails with an exception of its own."""

from typing import TypedDict

_BALANCES = {"alice": 120, "bob": 5}


class InsufficientFunds(Exception):
    """An account holds less than was asked for."""

    def __init__(self, account: str, missing: int) -> None:
        super().__init__(f"{account} is short of {missing}")
        self.account = account
        self.missing = missing


class Receipt(TypedDict):
    """What is left after a withdrawal."""

    account: str
    amount: int
    balance: int


def withdraw(account: str, amount: int) -> Receipt:
    """Work out a withdrawal; nothing is remembered between calls.

    Args:
        account: "alice" or "bob".
        amount: How much to take, from 1 on.
    """
    if amount < 1:
        raise ValueError(f"amount must be from 1 on, not {amount}")
    balance = _BALANCES[account]
    if amount > balance:
        raise InsufficientFunds(account, amount - balance)
    return Receipt(account=account, amount=amount, balance=balance - amount)
