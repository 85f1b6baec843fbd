"""Common words of English: a sentence of these alone may stand in any text."""

COMMON_WORDS = """
a able about above accept across act add after again against age ago agree air all allow almost alone along already also
although always am among amount an and another answer any anyone anything appear are area around as ask at away back bad
base be became because become been before began begin behind being believe below best better between big black blue body
book both boy bring brought build business but buy by call called came can cannot car care carry case cause center
certain chance change check child children choose city class clear close cold color come common company complete
consider contact continue correct cost could country course create cut day days deal decide describe did difference
different difficult do does doing done door down draw drive during each early easy eat effect either else end enough
especially even event ever every everyone everything example expect explain eye face fact family far fast father feel
feet few find fine first five following food for form found four free friend friends from front full further future
game gave general get girl give given go goes going gone good got great green ground group grow had half hand happen
happy hard has have having he head hear heard heart help her here herself high him himself his history hold home hope
hot hour hours house how however i idea if important in include including increase information inside instead into is
issue it its itself job just keep kind knew know known land large last late later law lead learn least leave left less
let letter level life light like likely line list little live local long longer look lot love low made mail main major
make making man many matter may maybe me mean means meet men might mind minute moment money month months more morning
most mother move much must my name national near need never new news next night no none not note nothing now number of
off offer office often oh old on once one only open or order other others our out outside over own page paper part
party pass past pay people perhaps period person phone place plan play please point possible power present president
probably problem process produce program provide public put question questions quite read ready real really reason
receive red remain remember report rest result right room run said same saw say school second see seem seen send sent
set several shall she short should show side since six size small so some someone something sometimes soon sort sound
speak special stand start state states statement still stop story street strong student students study such support sure
system table take taken talk team tell ten than thank thanks that the their them themselves then there therefore these
they thing things think third this those though thought thousand three through time times to today together told too
took top toward town tree tried true try trying turn two type under understand united until up upon us use used useful
using usually very view visit wait walk want war was watch water way ways we week weeks well went were what when where
whether which while white who whole whom whose why will with within without woman women word words work world would
write wrong year years yes yet you young your yourself
"""
