"""The words of the invented world, and the sentences they go into. Only `generate` uses it."""


def words(listed: str) -> list[str]:
    return listed.split(", ")


FIRST = words("Maren, Tobin, Ilse, Corvin, Hedda, Jory, Linnea, Osric, Petra, Ruvel, Sunniva, Thane")
LAST = words("Oldwick, Farrow, Brandt, Kesteven, Marlowe, Quillan, Stroud, Vessey, Wexcombe, Yarrow, Ashgill, Dunmore")
TOWNS = words(
    "Tarnby, Hollowmere, Skelwick, Ambersholt, Dunvarra, Pellinor, Gristhorpe, Wyverley, Crannick, "
    "Lowenfell, Orrisdale, Marrowgate, Brackwater, Sellingham, Thistlecombe, Undermoor"
)
DECOY_TOWNS = words(
    "Tarnford, Hollowgate, Skelbridge, Ambersea, Dunmarch, Pellworth, Gristwell, Wyvercote, Crannoch, Lowenby"
)
RIVERS = words(
    "Isken, Morrow, Tavel, Ulder, Brinnock, Cassow, Dellwater, Eskmere, Fennick, Garrel, Harrowbeck, "
    "Jessamy, Kelder, Lissom, Nethery, Oswell"
)
DECOY_RIVERS = words("Iskow, Morlen, Taverne, Uldmere, Brinley, Cassick, Dellow, Eskdale, Fennet, Garside")
LANDMARKS = words(
    "bronze heron, sunken sundial, twin-spired granary, leaning water clock, marble ferryman, blue-tiled "
    "fountain, steel apple tree, round bell house, stone chessboard, glass weathervane, copper "
    "lighthouse, wooden whale, walled orchard, painted windmill, silver well, crooked archway"
)
DECOY_LANDMARKS = words(
    "granite otter, broken obelisk, thatched bandstand, tin carousel, brick dovecote, slate pyramid, clay "
    "drummer, rope bridge, wooden pillory, brass compass"
)
CRAFTS = words(
    "cartographer, bookbinder, glassblower, beekeeper, luthier, clockmaker, ferrykeeper, weaver, potter, "
    "locksmith, cooper, lamplighter"
)
INSTRUMENTS = words("cello, bassoon, fiddle, accordion, clarinet, mandolin, trombone, zither")

THINGS = {
    "beetle": "The {a} beetle lives under the bark of dead {b} trees.",
    "bridge": "The {a} bridge was built of {b} timber after the old ford had been washed away.",
    "soup": "{A} soup is thickened with {b} root and served with dark bread.",
    "comet": "The {a} comet returns so seldom that no two generations have seen it under a {b} sky.",
    "moss": "{A} moss covers the north side of walls and turns {b} in the first frost.",
    "dance": "The {a} dance is done in two rows, each dancer holding a {b} ribbon.",
    "cheese": "{A} cheese ripens on {b} boards in a cellar that never warms.",
    "wind": "The {a} wind blows down from the hills for nine days and brings {b} dust.",
    "stamp": "The {a} stamp was withdrawn because its {b} ink came off on wet days.",
    "game": "The {a} game is played on a round board with {b} counters.",
    "boat": "The {a} boat has a flat bottom and a {b} sail that one person can handle.",
    "knot": "The {a} knot holds on wet rope and is named after a {b} guild.",
}
FIRST_WORDS = words("amber, bitter, coastal, drowsy, eastern, feathered, grey, hollow, ivory, jagged")
SECOND_WORDS = words("willow, larch, russet, violet, cedar, bronze, juniper, crimson, walnut, sable")
MORE = (
    "Travellers mention it in their letters, though few agree on where it was first seen.",
    "An early description survives in a parish book whose author did not sign his name.",
    "It has been drawn, sold and argued over more often than it has been measured.",
    "Children learn a rhyme about it that leaves out the only useful part.",
    "A society was formed to study it and spent most of its meetings on its own rules.",
    "Collectors pay little for it unless it comes with its original label.",
    "It went out of fashion for a while and came back under another name.",
    "The museum keeps one behind glass, next to a much larger copy made for a fair.",
)

CHATS = (
    ("plan a small vegetable bed", "lettuce, radishes and peas", "water in the early morning"),
    ("write a toast for a retirement party", "one story and one thank-you", "stop before the glasses are empty"),
    ("choose a name for a grey cat", "Pebble, Ash or Mister Fog", "say it aloud at the back door"),
    ("fold a letter without an envelope", "thirds, then the corners", "press each crease twice"),
    ("start running after a long break", "ten slow minutes", "rest every other day"),
    ("clean an old cast-iron pan", "coarse salt and a little oil", "dry it over low heat"),
    ("learn to whistle", "wet lips and very little air", "do not puff the cheeks"),
    ("pack for two days in the rain", "wool socks and a dry bag", "put the map on top"),
    ("repair a squeaking door", "soap on the hinge pin", "lift the door a little first"),
    ("keep a diary", "three lines each evening", "never read it in the first month"),
    ("make a simple paper lantern", "strips cut from the fold", "use a cool lamp inside"),
    ("bake flat bread in a pan", "flour, water and salt", "turn it when it blisters"),
)
ASKS = (
    ("Could you help me {what}?", "Gladly. To {what}, begin with {how}. Keep it plain at first and add to it later."),
    ("What do people usually get wrong?", "Most hurry. A good rule is this: {tip}. The rest follows from patience."),
    ("Can you put that in one sentence?", "Begin with {how}, and {tip}."),
)
