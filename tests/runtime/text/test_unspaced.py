# ruff: noqa: E501
"""Scripts without spaces: their words and sentences count in every rule, as those of scripts with spaces do."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.text.batch import TextBatch
from runtime.text.filter_rules import C4Document, C4Lines, GopherQuality, GopherRepetition, Length, Rule, fineweb2_rules
from runtime.text.filters import filtered, rejections
from runtime.text.measures import Measures
from runtime.text.unspaced import CHARACTERS_PER_WORD, num_words
from tests.catalogue import expect_error

PROSE = {
    "zh": """大运河是世界上最长的人工河流之一，北起北京，南到杭州，全长约一千七百多公里。它在隋朝时期大规模开凿，把海河、黄河、淮河、长江和钱塘江连接起来。“运河两岸的人们依靠水运生活。”历史学家这样写道。
到了元代，为了缩短航程，运河被改道直达大都。明清两代，漕粮从江南由船队运往北方，沿岸的城市因此繁荣，商人和工匠也聚集在这里。
近代铁路兴起以后，运河的运输地位下降了，不过部分河段仍然通航，也是南水北调东线工程的重要通道。今天，它已经被列入世界遗产名录。""",
    "ja": """京都は長いあいだ日本の都であり、今でも多くの寺や神社が残っている。春には桜が咲き、秋には紅葉が山を染めるので、国内外から大勢の旅行者が訪れる。
「祇園祭は七月に行われる大きな祭りです。」と案内の人が教えてくれた。町の中心では山や鉾と呼ばれる車が引かれ、夜遅くまで人で賑わう。
伝統的な家屋は木で建てられ、奥に細長い形をしている。最近では古い家を改装した喫茶店や宿も増えた。""",
    "th": """กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย ตั้งอยู่บนฝั่งแม่น้ำเจ้าพระยา มีประชากรมากที่สุดในประเทศ และเป็นศูนย์กลางของการค้า การศึกษา และวัฒนธรรม
ในอดีตเมืองนี้มีคลองจำนวนมากที่ใช้ในการเดินทางและขนส่งสินค้า ปัจจุบันคลองหลายสายได้ถูกถมเป็นถนน แต่ยังมีเรือโดยสารให้บริการอยู่ในบางส่วนของเมือง""",
    "hi": """गंगा भारत की सबसे लंबी नदी है और यह हिमालय से निकलकर बंगाल की खाड़ी में गिरती है। इसके किनारे पर कई प्राचीन नगर बसे हुए हैं।
नदी का पानी खेतों की सिंचाई के काम आता है, इसलिए उत्तर भारत के मैदान बहुत उपजाऊ माने जाते हैं। हर साल लाखों लोग यहाँ स्नान करने आते हैं।
पिछले कुछ दशकों में प्रदूषण एक बड़ी समस्या बन गया है।""",
    "km": """ភ្នំពេញគឺជារាជធានីនៃព្រះរាជាណាចក្រកម្ពុជា ដែលមានទីតាំងនៅតាមដងទន្លេមេគង្គ។ ទីក្រុងនេះបានក្លាយជាមជ្ឈមណ្ឌលសេដ្ឋកិច្ច និងវប្បធម៌របស់ប្រទេស។
នៅក្នុងទីក្រុងមានផ្សារជាច្រើន ដែលប្រជាជនទៅទិញម្ហូបអាហារជារៀងរាល់ថ្ងៃ។ អ្នកទេសចរមកពីប្រទេសផ្សេងៗចូលចិត្តទស្សនាព្រះបរមរាជវាំង និងសារមន្ទីរជាតិ។
ក្នុងរដូវវស្សាទឹកទន្លេឡើងខ្ពស់ ហើយប្រជាជនដែលរស់នៅជិតទន្លេធ្វើនេសាទ។""",
}


def pieces_of(text):
    batch = TextBatch([text])
    return [
        batch.data[start:end].tobytes().decode()
        for start, end in zip(batch.words.starts, batch.words.ends, strict=True)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("iPhone手机（好）很贵，3.5米。ok", ["iPhone", "手", "机（", "好）", "很", "贵，", "3.5", "米。", "ok"]),
        ("「方」 (abc)", ["「方」", "(abc)"]),
        ("วันดี", ["วั", "น", "ดี"]),
        ("\U00020000\U00020001", ["\U00020000", "\U00020001"]),
        ("안녕 hello", ["안녕", "hello"]),
    ],
)
def test_a_letter_begins_a_piece_of_its_own_and_marks_stay_with_it(text, expected):
    assert pieces_of(text) == expected


@given(st.lists(st.text(alphabet="ab9 ,\n中あガกั。「é\U00020000", max_size=30), max_size=4))
def test_words_do_not_depend_on_the_texts_beside_them(texts):
    counts = Measures(TextBatch(texts)).num_words
    assert counts.tolist() == [Measures(TextBatch([text])).num_words[0] for text in texts]
    for text in texts:
        assert "".join(pieces_of(text)) == "".join(text.split())


@pytest.mark.parametrize(
    "words",
    [
        "大运河 是 世界 上 最 长 的 人工 河流 之一",
        "春 に は 桜 が 咲き 秋 に は 紅葉 が 山 を 染める",
        "ใน อดีต เมือง นี้ มี คลอง จำนวน มาก ที่ ใช้ ใน การ เดินทาง และ ขนส่ง สินค้า",
        "ｼﾝｾﾂ ﾅ ﾋﾄ ﾆ ﾐﾁ ｦ ｷｲﾃ ｴｷ ﾏﾃﾞ ｱﾙｲﾀ",
        "འགྲོ་བ་ མིའི་ རིགས་རྒྱུད་ ཡོངས་ ལ་ སྐྱེས་ཙམ་ ཉིད་ནས་ ཆེ་མཐོངས་ དང་ ཐོབ་ཐང་ གི་ རང་དབང་ འདྲ་མཉམ་ དུ་ ཡོད་",
        "ក្នុង ទីក្រុង មាន ផ្សារ ជា ច្រើន ដែល ប្រជាជន ទៅ ទិញ ម្ហូប អាហារ",
    ],
)
def test_about_as_many_words_are_counted_as_a_reader_counts(words):
    text, expected = words.replace(" ", ""), words.count(" ") + 1
    (count,) = Measures(TextBatch([text])).num_words
    assert 0.7 < count / expected < 1.4
    assert num_words(text) == pytest.approx(count)


@pytest.mark.parametrize("language", PROSE)
def test_prose_passes_the_rules_of_its_language(language):
    text = PROSE[language]
    rules: list[Rule] = [*fineweb2_rules(language), Length(min_words=50), C4Document(min_sentences=5), C4Lines()]
    assert filtered([text, text.replace("\n", "\r\n")], rules) == [text, text]


@pytest.mark.parametrize("language", PROSE)
def test_short_or_repetitive_text_is_dropped_in_every_script(language):
    text = PROSE[language]
    (short,) = rejections([text[:20]], [Length(min_words=20)])
    assert short is not None
    (repetition, *_) = fineweb2_rules(language)
    (again,) = rejections([" ".join([text[:60].replace("\n", " ")] * 3)], [repetition])
    assert again is not None
    assert "-gram" in again.reason


def test_repeats_are_measured_in_words_and_not_in_letters():
    """A name of four letters, which is two to three words, may stand in every sentence."""
    sentences = [
        f"李白去{place}看朋友李白说{thing}很好。" for place, thing in zip("山河江湖海", "花酒月诗画", strict=True)
    ]
    assert rejections(["\n".join([*sentences, PROSE["zh"]])], [fineweb2_rules("zh")[0]]) == [None]


def test_a_language_without_thresholds_is_refused():
    with expect_error(ValueError):
        fineweb2_rules("xx")


def test_the_shares_of_letters_are_those_of_their_script():
    for characters, ranges in CHARACTERS_PER_WORD:
        letter = next(chr(code) for code in range(*ranges[-1]) if chr(code).isalnum())
        assert Measures(TextBatch([letter * 12])).num_words[0] == pytest.approx(12 / characters)


LINE = "The river carries boats to the sea, and nobody complains about its water."


@pytest.mark.parametrize("newline", ["\r\n", "\r", "\v", "\f", "\x85", "\u2028", "\u2029"])
def test_every_newline_ends_a_line_before_a_rule_sees_it(newline):
    for text in ("\n".join([LINE, "menu", "menu", "menu"]), "\n\n".join(["word", "word", LINE, "word", "word"])):
        expected = rejections([text], [GopherRepetition()])
        assert expected != [None]
        assert rejections([text.replace("\n", newline)], [GopherRepetition()]) == expected
    kept = f"{LINE}{newline}{LINE}"
    assert filtered([kept], [GopherQuality(min_words=5)]) == [kept]


@pytest.mark.parametrize("ending", [".", ".”", ".’", "!»", '."', "。」", "！』", "।", "۔", "။", "።"])
def test_a_sentence_may_end_in_closing_marks(ending):
    text = f"One word after another{ending} " * 5
    assert rejections([text, text.replace(ending, "…”)")], [C4Document()]) == [None, None]
    assert filtered([text.strip()], [C4Lines()]) == [text.strip()]


def test_a_long_line_without_spaces_is_no_long_word():
    line = "".join(chr(0x4E00 + number) for number in range(1_500)) + "。"
    assert filtered([line], [C4Lines()]) == [line]
    (dropped,) = filtered(["x" * 1_001 + " is no word."], [C4Lines()])
    assert not isinstance(dropped, str)
