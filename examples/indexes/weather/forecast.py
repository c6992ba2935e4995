"""Weather of a few cities, made up from a bundled table of their climate.

The same question always has the same answer: the variation from day to day is
computed from the city's name, not drawn.
"""

import csv
import hashlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypedDict

Units = Literal["metric", "imperial"]


class Day(TypedDict):
    """The weather of one day."""

    day: int
    low: float
    high: float
    rain_probability: float
    sky: str


class Today(TypedDict):
    """The weather of a city today."""

    city: str
    country: str
    summary: str
    units: Units
    low: float
    high: float
    rain_probability: float


class Hour(TypedDict):
    """The weather of one hour."""

    hour: int
    temperature: float


class Climate(TypedDict):
    country: str
    low: float
    high: float
    rain: float
    sky: str


class UnknownCity(LookupError):
    """The table has no such city."""


def _read_table() -> dict[str, Climate]:
    with (Path(__file__).parent / "climate.csv").open(encoding="utf-8", newline="") as file:
        return {
            row["city"]: Climate(
                country=row["country"],
                low=float(row["low"]),
                high=float(row["high"]),
                rain=float(row["rain"]),
                sky=row["sky"],
            )
            for row in csv.DictReader(file)
        }


_TABLE = _read_table()


def _find(city: str) -> tuple[str, Climate]:
    wanted = city.strip().casefold()
    for name, climate in _TABLE.items():
        if name.casefold() == wanted:
            return name, climate
    raise UnknownCity(f"no weather for {city!r}; known cities are {', '.join(_TABLE)}")


def _swing(city: str, day: int) -> float:
    """A number from -1 to 1 that depends on nothing but its arguments."""
    digest = hashlib.sha256(f"{city}/{day}".encode()).digest()
    return int.from_bytes(digest[:4], "big") / 0x7FFFFFFF - 1


def _degrees(celsius: float, units: Units) -> float:
    return round(celsius * 9 / 5 + 32 if units == "imperial" else celsius, 1)


def _day(name: str, climate: Climate, day: int, units: Units) -> Day:
    swing = _swing(name, day)
    return Day(
        day=day,
        low=_degrees(climate["low"] + 3 * swing, units),
        high=_degrees(climate["high"] + 4 * swing, units),
        rain_probability=round(min(1.0, max(0.0, climate["rain"] * (1 - swing / 2))), 2),
        sky=climate["sky"] if swing < 0.5 else "clear sky",
    )


def today(city: str, units: Units = "metric") -> Today:
    """The weather of a city today.

    Args:
        city: Name of the city, in any case.
        units: Degrees Celsius or Fahrenheit.
    """
    name, climate = _find(city)
    day = _day(name, climate, 0, units)
    sign = "°F" if units == "imperial" else "°C"
    return Today(
        city=name,
        country=climate["country"],
        summary=f"{name}: {day['sky']}, {day['low']:g} to {day['high']:g} {sign}",
        units=units,
        low=day["low"],
        high=day["high"],
        rain_probability=day["rain_probability"],
    )


def daily(city: str, days: int = 3, units: Units = "metric") -> list[Day]:
    """The weather of a city for the next days, today included.

    Args:
        city: Name of the city, in any case.
        days: How many days, from 1 to 14.
        units: Degrees Celsius or Fahrenheit.
    """
    if not 1 <= days <= 14:
        raise ValueError(f"days must be from 1 to 14, not {days}")
    name, climate = _find(city)
    return [_day(name, climate, day, units) for day in range(days)]


def hours(city: str, units: Units = "metric") -> Iterator[Hour]:
    """Today's temperature, hour by hour, as a stream of 24 items.

    Args:
        city: Name of the city, in any case.
        units: Degrees Celsius or Fahrenheit.
    """
    name, climate = _find(city)
    middle = (climate["low"] + climate["high"]) / 2 + 3.5 * _swing(name, 0)
    half = (climate["high"] - climate["low"]) / 2
    for hour in range(24):
        warmth = math.cos((hour - 15) / 24 * 2 * math.pi)  # warmest at 15:00
        yield Hour(hour=hour, temperature=_degrees(middle + half * warmth, units))


def cities() -> list[str]:
    """The cities that have a forecast, in alphabetical order."""
    return sorted(_TABLE)
