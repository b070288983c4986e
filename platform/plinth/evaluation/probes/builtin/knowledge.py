"""General knowledge: facts that most large collections of text state many times.

A sentence is long enough for the comparison with training text to find a copy of it, and says nothing that would give
the answer away: its control is the same sentence about another subject.
"""

from __future__ import annotations

from plinth.evaluation.probes.base import Probe, ProbeItem
from plinth.evaluation.probes.builtin import facts

FAMILY = "knowledge"

#: By template the sentence, and its subjects with their answers.
TABLES: dict[str, tuple[str, str]] = {
    "capitals": (
        "On every political map of the world, the country called {} has its government in the capital city of",
        "France=Paris;Italy=Rome;Japan=Tokyo;Egypt=Cairo;Russia=Moscow;Spain=Madrid;Germany=Berlin;China=Beijing;"
        "Greece=Athens;Norway=Oslo;Kenya=Nairobi;Cuba=Havana;Peru=Lima;Austria=Vienna;Portugal=Lisbon;Ireland=Dublin",
    ),
    "continents": (
        "An atlas lists every country under the one continent it lies in, and there the country of {} is listed under",
        "Kenya=Africa;Brazil=South America;Japan=Asia;France=Europe;Canada=North America;Nigeria=Africa;India=Asia;"
        "Poland=Europe;Chile=South America;Mexico=North America;Vietnam=Asia;Sweden=Europe",
    ),
    "currencies": (
        "A traveller who wants to pay in cash in the shops of {} has to change money into the local currency, the",
        "Japan=yen;Russia=ruble;China=yuan;India=rupee;Mexico=peso;Switzerland=franc;Poland=zloty;Britain=pound;"
        "Germany=euro;Turkey=lira;Brazil=real;Canada=dollar",
    ),
    "official_languages": (
        "A visitor who listens to people in the streets of {} hears one language more often than any other, which is",
        "Brazil=Portuguese;Austria=German;Mexico=Spanish;Egypt=Arabic;Japan=Japanese;Russia=Russian;China=Chinese;"
        "Poland=Polish;Turkey=Turkish;Australia=English;Greece=Greek;Sweden=Swedish",
    ),
    "elements": (
        "In the periodic table that hangs in most chemistry classrooms, the symbol {} stands for the element called",
        "Fe=iron;Au=gold;Ag=silver;O=oxygen;H=hydrogen;C=carbon;Na=sodium;Cu=copper;Pb=lead;He=helium;N=nitrogen;"
        "Hg=mercury;Sn=tin;K=potassium",
    ),
    "planets": (
        "When the planets of the solar system are counted from the sun outwards, planet number {} is the one called",
        "one=Mercury;two=Venus;three=Earth;four=Mars;five=Jupiter;six=Saturn;seven=Uranus;eight=Neptune",
    ),
    "young_animals": (
        "Farmers and zoologists have a special word for the young of each animal, and the young of a {} is called a",
        "cow=calf;dog=puppy;cat=kitten;horse=foal;sheep=lamb;bear=cub;deer=fawn;goat=kid;duck=duckling;goose=gosling;"
        "pig=piglet;frog=tadpole",
    ),
    "kinds": (
        "In a simple catalogue that sorts all living things into a few large groups, a {} is put into the group of",
        "trout=fish;sparrow=birds;ant=insects;cobra=snakes;oak=trees;rose=flowers;wheat=grasses;salmon=fish;eagle=birds;"
        "beetle=insects;python=snakes;birch=trees;tulip=flowers",
    ),
    "opposites": (
        "A dictionary of opposites has exactly one word for each of its entries, and the opposite of the word {} is",
        "hot=cold;big=small;early=late;open=closed;rich=poor;strong=weak;true=false;full=empty;wet=dry;hard=soft;"
        "light=dark;first=last;new=old;fast=slow",
    ),
    "colours": (
        "Asked to paint it as it usually looks in real life, a child who paints {} will choose a colour that is",
        "fresh snow=white;grass in spring=green;a clear sky=blue;a ripe lemon=yellow;blood=red;a lump of coal=black;"
        "an elephant=grey;a ripe tomato=red;a spruce tree=green;the yolk of an egg=yellow;tree bark=brown",
    ),
    "organs": (
        "A doctor explains to a school class which part of the human body {} and writes its name down, which is the",
        "pumps the blood=heart;thinks=brain;breathes in air=lungs;digests food first=stomach;sees=eye;hears=ear;"
        "smells=nose;tastes=tongue;filters the blood into urine=kidney;makes bile=liver",
    ),
    "professions": (
        "In the telephone book of the town people are sorted by their trade, and somebody who {} is listed as a",
        "bakes bread=baker;repairs pipes=plumber;cuts hair=barber;flies aeroplanes=pilot;teaches children=teacher;"
        "grows crops=farmer;treats the sick=doctor;builds with wood=carpenter;catches fish=fisherman;sews suits=tailor;"
        "makes shoes=cobbler;serves in a restaurant=waiter",
    ),
    "authors": (
        "On the shelves of a library, where books stand by their author, the book {} stands under the name of",
        "Hamlet=Shakespeare;War and Peace=Tolstoy;Don Quixote=Cervantes;Faust=Goethe;Oliver Twist=Dickens;"
        "The Divine Comedy=Dante;Pride and Prejudice=Austen;The Odyssey=Homer;Moby Dick=Melville;"
        "Crime and Punishment=Dostoevsky;Les Miserables=Hugo;Walden=Thoreau",
    ),
    "discoveries": (
        "In histories of science, the discovery or the invention of {} is above all connected with the name of",
        "general relativity=Einstein;the laws of motion=Newton;natural selection=Darwin;radium=Curie;"
        "penicillin=Fleming;the telephone=Bell;dynamite=Nobel;vaccination=Jenner;pasteurisation=Pasteur;"
        "X-rays=Röntgen;the moons of Jupiter=Galileo;the periodic table=Mendeleev",
    ),
    "purposes": (
        "Somebody who needs to {} looks through all the drawers of the house until there is at last a",
        "cut paper=pair of scissors;drive in a nail=hammer;measure a length=ruler;sweep the floor=broom;"
        "open a lock=key;sew a button=needle;write a letter=pen;boil water=kettle;see in the dark=torch;"
        "tell the time=clock;eat soup=spoon;comb hair=comb",
    ),
    "status_codes": (
        "In the protocol that web browsers speak, a server that answers a request with the status code {} says",
        "200=OK;404=Not Found;403=Forbidden;500=Internal Server Error;301=Moved Permanently;400=Bad Request;"
        "401=Unauthorized;503=Service Unavailable;201=Created;304=Not Modified;"
        "405=Method Not Allowed;408=Request Timeout",
    ),
    "characters": (
        "Programmers and printers have a name for each sign on the keyboard, and the sign {} is the one called",
        "&=ampersand;?=question mark;,=comma;:=colon;!=exclamation mark;*=asterisk;-=hyphen;_=underscore;"
        "%=percent sign;/=slash;+=plus sign;$=dollar sign;@=at sign",
    ),
    "file_endings": (
        "From the last letters of its name one can often tell what a file has in it: a file whose name ends in {} has",
        ".jpg=a picture;.mp3=music;.py=Python code;.html=a web page;.zip=an archive;.csv=a table;.mp4=a video;"
        ".txt=plain text;.exe=a program;.ttf=a font",
    ),
}

#: Beginnings of expressions and their ends, which a model learns before any fact.
PHRASES = (
    "it is cheap on the one hand but slow on the other=hand;the work was done in accordance=with;it was for the very "
    "first=time;nobody knew it, as a matter of=fact;it is true if and only=if;the two sides were talking to each=other;"
    "please read the manual for more=information;the value is returned as well=as;it is better to ask rather=than;"
    "a list of names, for=example;the result does not depend=on;the set consists=of;it may be neither small=nor;"
    "the file is not only long but=also;it was much larger than we=thought;the people of the United=States;"
    "he was born at the end of the nineteenth=century;it will take a long time, at=least;"
    "these functions take the same=arguments;once upon a=time"
)


def build() -> list[ProbeItem]:
    """All items, template by template."""
    tables = {**TABLES, "phrases": ("{}", PHRASES)}
    return [
        item
        for name, (pattern, rows) in tables.items()
        for item in facts.items(FAMILY, name, facts.table(pattern, rows))
    ]


PROBE = Probe(FAMILY, "Facts as cloze sentences, and the ends of common phrases.", FAMILY, build)
