"""The words and sentences of the built-in world: what its grammar is made of (``rlhf.data.world``)."""


def _list(text: str, mark: str | None = None) -> list[str]:
    return [item.strip() for item in text.split(mark)]


PRODUCTS = _list("phone laptop tablet watch radio printer scanner speaker console router monitor recorder")
ASPECTS = _list("screen battery price sound camera design weight speed keyboard charger software case")
GOOD = _list("""superb lovely great sharp solid clever neat smooth brilliant pleasant reliable delightful fantastic
    crisp elegant gorgeous perfect wonderful handy splendid charming refined sturdy generous""")
FAIR = _list("average okay ordinary passable typical decent bearable standard")
BAD = _list("""awful poor dull weak clumsy ugly flimsy annoying terrible dreadful shoddy cheap disappointing faulty
    messy useless horrible nasty crude fragile awkward mediocre sloppy unpleasant""")
DEGREES = _list("very really truly rather quite fairly pretty simply")
PEOPLE = _list("wife brother boss neighbour daughter friend sister uncle")
TIMES = _list(
    "last week|in spring|two months ago|on Monday|for my birthday|before the holidays|a year ago|in town", "|"
)
DETAILS = _list("""after two weeks|in direct sun|on long trips|with cold hands|at full load|during video calls|
    under daily use|for the whole day|next to older ones|in a noisy office|on the night train|with gloves on|
    after a fall|in heavy rain|while cooking|at my desk|when travelling|over many hours|for small children|
    out of the box""", "|")  # fmt: skip

OPENINGS = ["I bought this {product} {time}.", "This {product} arrived {time}.", "We got the {product} {time}.",
            "My {person} gave me this {product} {time}.", "I have owned the {product} for a while."]  # fmt: skip
OPINIONS = ["The {aspect} is {degree} {opinion}.", "I find the {aspect} {opinion}.", "Its {aspect} feels {opinion}.",
            "My {person} calls the {aspect} {opinion}.", "The {aspect} turned out {degree} {opinion}.",
            "We think the {aspect} looks {opinion}.", "To me the {aspect} seems {degree} {opinion}."]  # fmt: skip
OPINIONS += [sentence.replace("{opinion}.", "{opinion} {detail}.") for sentence in OPINIONS]
CLOSINGS = ["I would buy it again.", "I would not buy it again.", "Anyone can use it.", "That is all I can say.",
            "My {person} wants one too.", "It goes back to the shop."]  # fmt: skip
ARTICLES = ["Every {product} needs some {aspect}.", "Most people ask about the {aspect} first.",
            "One {person} of mine knows each {product} in the shop.",
            "Some say the {aspect} matters most in a {product}.",
            "Last year the {product} changed a lot."]  # fmt: skip
REQUESTS = ["Review the {product}: {aspects}.", "Please review this {product}. Cover the {aspects}.",
            "What do you think of the {product}, its {aspects}?",
            "Tell me about the {aspects} of your {product}."]  # fmt: skip

SLOTS = {"product": PRODUCTS, "aspect": ASPECTS, "opinion": GOOD + FAIR + BAD, "degree": DEGREES, "person": PEOPLE,
         "time": TIMES, "detail": DETAILS}  # fmt: skip
