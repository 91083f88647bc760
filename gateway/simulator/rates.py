"""Supported currencies, with fixed invented exchange rates."""

from decimal import Decimal

from gateway.simulator.money import EXACT_CONTEXT

# Name, and units of the currency that one US dollar buys.
CURRENCIES = {
    "AED": ("UAE Dirham", "3.6725"),
    "AOA": ("Angolan Kwanza", "850"),
    "ARS": ("Argentine Peso", "890"),
    "AUD": ("Australian Dollar", "1.52"),
    "AZN": ("Azerbaijani Manat", "1.7"),
    "BDT": ("Bangladeshi Taka", "117"),
    "BGN": ("Bulgarian Lev", "1.8"),
    "BHD": ("Bahraini Dinar", "0.376"),
    "BMD": ("Bermudian Dollar", "1"),
    "BOB": ("Bolivian Boliviano", "6.91"),
    "BRL": ("Brazilian Real", "5.1"),
    "BZD": ("Belize Dollar", "2"),
    "CAD": ("Canadian Dollar", "1.36"),
    "CHF": ("Swiss Franc", "0.88"),
    "CLP": ("Chilean Peso", "915"),
    "CNY": ("Chinese Yuan", "7.24"),
    "COP": ("Colombian Peso", "3890"),
    "CRC": ("Costa Rican Colón", "512"),
    "CZK": ("Czech Koruna", "23.1"),
    "DKK": ("Danish Krone", "6.86"),
    "DOP": ("Dominican Peso", "59"),
    "EGP": ("Egyptian Pound", "47.6"),
    "ETB": ("Ethiopian Birr", "57.2"),
    "EUR": ("Euro", "0.92"),
    "FJD": ("Fijian Dollar", "2.25"),
    "GBP": ("British Pound", "0.79"),
    "GEL": ("Georgian Lari", "2.7"),
    "GHS": ("Ghanaian Cedi", "14.2"),
    "GTQ": ("Guatemalan Quetzal", "7.77"),
    "GYD": ("Guyanese Dollar", "209"),
    "HKD": ("Hong Kong Dollar", "7.82"),
    "HTG": ("Haitian Gourde", "132.5"),
    "HUF": ("Hungarian Forint", "358.5"),
    "IDR": ("Indonesian Rupiah", "16150"),
    "ILS": ("Israeli New Shekel", "3.7"),
    "INR": ("Indian Rupee", "83.4"),
    "ISK": ("Icelandic Króna", "137.5"),
    "JMD": ("Jamaican Dollar", "156"),
    "JOD": ("Jordanian Dinar", "0.709"),
    "JPY": ("Japanese Yen", "155.2"),
    "KES": ("Kenyan Shilling", "131"),
    "KHR": ("Cambodian Riel", "4080"),
    "KRW": ("South Korean Won", "1370"),
    "KWD": ("Kuwaiti Dinar", "0.307"),
    "KZT": ("Kazakhstani Tenge", "445"),
    "LKR": ("Sri Lankan Rupee", "300"),
    "MAD": ("Moroccan Dirham", "10.05"),
    "MNT": ("Mongolian Tugrik", "3450"),
    "MXN": ("Mexican Peso", "16.8"),
    "MYR": ("Malaysian Ringgit", "4.71"),
    "MZN": ("Mozambican Metical", "63.85"),
    "NGN": ("Nigerian Naira", "1480"),
    "NOK": ("Norwegian Krone", "10.65"),
    "NPR": ("Nepalese Rupee", "133.5"),
    "NZD": ("New Zealand Dollar", "1.66"),
    "PEN": ("Peruvian Sol", "3.72"),
    "PHP": ("Philippine Peso", "57.8"),
    "PKR": ("Pakistani Rupee", "278"),
    "PLN": ("Polish Zloty", "3.95"),
    "PYG": ("Paraguayan Guarani", "7500"),
    "QAR": ("Qatari Riyal", "3.64"),
    "RON": ("Romanian Leu", "4.58"),
    "RUB": ("Russian Ruble", "90.5"),
    "SAR": ("Saudi Riyal", "3.75"),
    "SEK": ("Swedish Krona", "10.45"),
    "SGD": ("Singapore Dollar", "1.35"),
    "THB": ("Thai Baht", "36.6"),
    "TOP": ("Tongan Paanga", "2.35"),
    "TRY": ("Turkish Lira", "32.4"),
    "TWD": ("New Taiwan Dollar", "32.3"),
    "TZS": ("Tanzanian Shilling", "2590"),
    "UAH": ("Ukrainian Hryvnia", "39.7"),
    "UGX": ("Ugandan Shilling", "3790"),
    "USD": ("US Dollar", "1"),
    "UYU": ("Uruguayan Peso", "38.6"),
    "UZS": ("Uzbekistani Som", "12650"),
    "VND": ("Vietnamese Dong", "25400"),
    "ZAR": ("South African Rand", "18.6"),
    "ZMW": ("Zambian Kwacha", "25.9"),
}

RATE_PRECISION = Decimal("1e-10")
QUOTE_STEP = Decimal("0.0005")


def look_up_currency_name(code: str) -> str:
    return CURRENCIES[code][0]


def compute_exchange_rate(source: str, target: str, quotes: int = 0) -> Decimal:
    """Returns how much of the target currency one unit of the source buys, to ten decimals.

    Each quote raises the rate by 0.05 %, so that a test can see that a quote was made.
    """
    if source == target:
        return Decimal(1)
    # Both rates are per US dollar, so their quotient is the cross rate.
    base_rate = EXACT_CONTEXT.divide(Decimal(CURRENCIES[target][1]), Decimal(CURRENCIES[source][1]))
    quoted_rate = EXACT_CONTEXT.multiply(base_rate, 1 + quotes * QUOTE_STEP)
    # Ten decimals are exact enough that the other amount is right to the cent.
    return quoted_rate.quantize(RATE_PRECISION, context=EXACT_CONTEXT)


def format_rate(rate: Decimal) -> str:
    """Formats without trailing zeros: 0.92, not 0.9200000000."""
    return f"{rate.normalize(EXACT_CONTEXT):f}"
