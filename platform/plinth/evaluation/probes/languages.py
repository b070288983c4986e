"""Built-in language probe, which measures the knowledge of twenty-one languages by numbers, words and word order."""

from __future__ import annotations

from typing import NamedTuple

from plinth.evaluation.probes import base
from plinth.evaluation.probes.base import Cloze, Probe, ProbeItem, words

# Twenty-one languages: the numbers from one to six, six nouns, sentences; written for Plinth.
#
# The nouns are, in this order: water, house, book, sun, bread, dog. Sentences are separated by `|`. Words of a language
# without spaces are separated by a space here and joined on use.

#: The nouns in English.
ENGLISH = words("water house book sun bread dog")


class Language(NamedTuple):
    """Words of a language; `spaced` is False if the language is written without spaces."""

    name: str
    numbers: str
    nouns: str
    sentences: str
    spaced: bool = True


LANGUAGES: dict[str, Language] = {
    "en": Language("English", "one two three four five six", "",
        "In the morning my sister goes to the park with her dog and meets a friend there.|"
        "If it rains tomorrow, we will stay at home and read a book to the children.|"
        "The function returns the number of items in the list, or zero if the list is empty.|"
        "This is one of the most important parts of the work that we have done in the past."),
    "de": Language("German", "eins zwei drei vier fünf sechs", "Wasser Haus Buch Sonne Brot Hund",
        "Am Morgen geht meine Schwester mit ihrem Hund in den Park und trifft dort ihre Freundin.|"
        "Wenn es morgen regnet, bleiben wir zu Hause und lesen den Kindern ein Buch vor."),
    "fr": Language("French", "un deux trois quatre cinq six", "eau maison livre soleil pain chien",
        "Le matin, ma sœur va au parc avec son chien et elle y rencontre une amie.|"
        "S'il pleut demain, nous resterons à la maison et nous lirons un livre aux enfants."),
    "es": Language("Spanish", "uno dos tres cuatro cinco seis", "agua casa libro sol pan perro",
        "Por la mañana mi hermana va al parque con su perro y allí se encuentra con una amiga.|"
        "Si mañana llueve, nos quedaremos en casa y leeremos un libro a los niños."),
    "it": Language("Italian", "uno due tre quattro cinque sei", "acqua casa libro sole pane cane",
        "La mattina mia sorella va al parco con il suo cane e lì incontra una sua amica.|"
        "Se domani piove, resteremo a casa e leggeremo un libro ai bambini."),
    "pt": Language("Portuguese", "um dois três quatro cinco seis", "água casa livro sol pão cão",
        "De manhã a minha irmã vai ao parque com o seu cão e encontra lá uma amiga.|"
        "Se chover amanhã, ficaremos em casa e leremos um livro às crianças."),
    "nl": Language("Dutch", "een twee drie vier vijf zes", "water huis boek zon brood hond",
        "In de ochtend gaat mijn zus met haar hond naar het park en daar ontmoet ze een vriendin.|"
        "Als het morgen regent, blijven we thuis en lezen we de kinderen een boek voor."),
    "sv": Language("Swedish", "ett två tre fyra fem sex", "vatten hus bok sol bröd hund",
        "På morgonen går min syster till parken med sin hund och där träffar hon en vän.|"
        "Om det regnar i morgon stannar vi hemma och läser en bok för barnen."),
    "pl": Language("Polish", "jeden dwa trzy cztery pięć sześć", "woda dom książka słońce chleb pies",
        "Rano moja siostra idzie do parku ze swoim psem i spotyka tam koleżankę.|"
        "Jeśli jutro będzie padać, zostaniemy w domu i przeczytamy dzieciom książkę."),
    "ru": Language("Russian", "один два три четыре пять шесть", "вода дом книга солнце хлеб собака",
        "Утром моя сестра идёт в парк со своей собакой и встречает там подругу.|"
        "Если завтра будет дождь, мы останемся дома и почитаем детям книгу."),
    "uk": Language("Ukrainian", "один два три чотири п'ять шість", "вода дім книга сонце хліб собака",
        "Вранці моя сестра йде до парку зі своїм собакою і зустрічає там подругу.|"
        "Якщо завтра буде дощ, ми залишимося вдома і почитаємо дітям книгу."),
    "tr": Language("Turkish", "bir iki üç dört beş altı", "su ev kitap güneş ekmek köpek",
        "Sabahları kız kardeşim köpeğiyle parka gider ve orada bir arkadaşıyla buluşur.|"
        "Yarın yağmur yağarsa evde kalırız ve çocuklara bir kitap okuruz."),
    "fi": Language("Finnish", "yksi kaksi kolme neljä viisi kuusi", "vesi talo kirja aurinko leipä koira",
        "Aamulla sisareni menee koiransa kanssa puistoon ja tapaa siellä ystävänsä.|"
        "Jos huomenna sataa, jäämme kotiin ja luemme lapsille kirjaa."),
    "el": Language("Greek", "ένα δύο τρία τέσσερα πέντε έξι", "νερό σπίτι βιβλίο ήλιος ψωμί σκύλος",
        "Το πρωί η αδελφή μου πηγαίνει στο πάρκο με τον σκύλο της και συναντά εκεί μια φίλη.|"
        "Αν βρέξει αύριο, θα μείνουμε στο σπίτι και θα διαβάσουμε ένα βιβλίο στα παιδιά."),
    "ar": Language("Arabic", "واحد اثنان ثلاثة أربعة خمسة ستة", "ماء بيت كتاب شمس خبز كلب",
        "في الصباح تذهب أختي إلى الحديقة مع كلبها وتلتقي هناك بصديقة.|"
        "إذا أمطرت غدا فسنبقى في البيت ونقرأ كتابا للأطفال."),
    "hi": Language("Hindi", "एक दो तीन चार पाँच छह", "पानी घर किताब सूरज रोटी कुत्ता",
        "सुबह मेरी बहन अपने कुत्ते के साथ पार्क जाती है और वहाँ एक सहेली से मिलती है।|"
        "अगर कल बारिश हुई तो हम घर पर रहेंगे और बच्चों को एक किताब पढ़कर सुनाएँगे।"),
    "vi": Language("Vietnamese", "một hai ba bốn năm sáu", "nước nhà sách mặt_trời bánh_mì chó",
        "Buổi sáng chị tôi dắt chó ra công viên và gặp một người bạn ở đó.|"
        "Nếu ngày mai trời mưa, chúng tôi sẽ ở nhà và đọc sách cho các con nghe."),
    "id": Language("Indonesian", "satu dua tiga empat lima enam", "air rumah buku matahari roti anjing",
        "Pada pagi hari kakak saya pergi ke taman dengan anjingnya dan bertemu seorang teman di sana.|"
        "Jika besok hujan, kami akan tinggal di rumah dan membacakan buku untuk anak-anak."),
    "zh": Language("Chinese", "一 二 三 四 五 六", "水 房子 书 太阳 面包 狗",
        "早上 我 姐姐 带 着 她 的 狗 去 公园 ， 在 那里 遇到 了 一 个 朋友 。|"
        "如果 明天 下雨 ， 我们 就 待 在 家里 给 孩子 们 读 一 本 书 。", spaced=False),
    "ja": Language("Japanese", "一 二 三 四 五 六", "水 家 本 太陽 パン 犬",
        "朝 、 姉 は 犬 を 連れて 公園 へ 行き 、 そこ で 友達 に 会い ます 。|"
        "明日 雨 が 降ったら 、 私たち は 家 に いて 子供 たち に 本 を 読み ます 。", spaced=False),
    "ko": Language("Korean", "하나 둘 셋 넷 다섯 여섯", "물 집 책 해 빵 개",
        "아침에 우리 언니는 개를 데리고 공원에 가서 거기서 친구를 만난다.|"
        "내일 비가 오면 우리는 집에 있으면서 아이들에게 책을 읽어 줄 것이다."),
}  # fmt: skip

# A template is a language with a task. Wrong answers are words of the same language, or the same words in another
# order, so that only knowledge of the language helps.

FAMILY = "languages"


def _numbers(language: Language) -> list[Cloze]:
    """Return clozes with consecutive numbers as the prompt and the next number as the answer; the control is another
    sequence."""
    numbers = language.numbers.split()
    facts_ = []
    for place in range(4):
        shown, gold = numbers[place : place + 2], numbers[place + 2]
        wrong = base.some(f"{language.name}/{place}", [one for one in numbers if one not in (*shown, gold)], 3)
        prompt = f"Counting in {language.name}: {shown[0]}, {shown[1]},"
        facts_.append(Cloze(prompt, f" {gold}", tuple(f" {one}" for one in wrong)))
    return facts_


def _nouns(language: Language) -> list[Cloze]:
    """Return clozes that ask for the translation of an English noun. The last two are few-shot examples for the
    others."""
    words = [word.replace("_", " ") for word in language.nouns.split()]
    return [
        Cloze(f"The English word {english} is in {language.name}", f" {word}")
        for english, word in zip(ENGLISH, words, strict=True)
    ]


def _sentences(language: Language) -> list[Cloze]:
    """Return clozes that ask for the end of a sentence. Wrong answers have the same words in another order."""
    made, join = [], " " if language.spaced else ""
    sentences = [sentence.split(" ") for sentence in language.sentences.split("|")]
    for number, sentence in enumerate(sentences):
        other = sentences[(number + 1) % len(sentences)]
        for part in (3, 2):
            place = len(sentence) // part
            control, end = other[: len(other) // part], sentence[place:]
            orders = (base.shuffled(f"{language.name}/{number}/{place}/{i}", end[:-1]) for i in range(9))
            wrong = [join.join([*order, end[-1]]) for order in orders if order != end[:-1]]
            different = list(dict.fromkeys(wrong))[: base.WRONG]
            near = tuple(join + one for one in different)
            made.append(Cloze(join.join(sentence[:place]), join + join.join(end), near, join.join(control)))
    return made


def build() -> list[ProbeItem]:
    """Return all items of the language probe, language by language."""
    made: list[ProbeItem] = []
    for code, language in LANGUAGES.items():
        made += base.items(FAMILY, f"{code}/numbers", _numbers(language))
        if language.nouns:  # English needs no translation
            made += base.with_examples(FAMILY, f"{code}/words", _nouns(language))
        made += base.items(FAMILY, f"{code}/order", _sentences(language))
    return made


LANGUAGES_PROBE = Probe(FAMILY, "Numbers, words and the order of words in twenty-one languages.", FAMILY, build)
