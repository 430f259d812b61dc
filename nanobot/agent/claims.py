"""Detects answers that claim an action without a tool call: "I have created notes.txt", and nothing was done.

A claim is a sentence in the first person about a performed action, or a short answer that only promises one. Only turns
in which no tool acted are judged, since what a command or another's tool did cannot be told from its name. English and
Chinese are supported. Questions, conditions, quotes, code, earlier turns and requested texts are not claims.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from nanobot.agent.tools.base import Effect, Tool
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.messages.types import ChatMessage, Origin, had_no_effect, is_synthetic, text_of
from nanobot.providers.base import parse_arguments

FILE = (
    r"(?:https?://\S+|[\w~./\\-]*\w\.(?:txt|md|py|json|ya?ml|toml|csv|tsv|jsx?|tsx?|html?|css|sh|log|ini|cfg|conf|xml|"
    r"sql|pdf|docx?|xlsx?|pptx?|png|jpe?g|svg|zip|gz|tar|env|rs|go|java|c|cpp|h|rb|php|ipynb|lock|bak)\b|\b(?:README|"
    r"Makefile|Dockerfile)\b|(?<![\w/:.])~?/\w[\w./-]*\w)"
)
_MAX_CHARS = 10_000
_MAX_SENTENCE_CHARS = 400
_SHORT_ANSWER_CHARS = 300
_MAX_REQUEST_CHARS = 1_000
_FEEDBACK_PREFIX = "You wrote: "


class ClaimedAction(NamedTuple):
    """A kind of action: the verbs that claim it, and what it is done to."""

    verbs: str
    thing: str
    only_looks: bool = False


_ENGLISH = (
    ClaimedAction(  # files and commands
        r"created|wr(?:ote|itten)|rewr(?:ote|itten)|saved|stored|added|appended|updated|edited|modified|changed|"
        r"replaced|generated|made|fixed|recorded|logged|inserted|put|refactored|configured|exported|implemented|"
        r"overwrote|patched|set(?: up)?|switched|converted|extracted|corrected|applied|shortened|jotted|toned|"
        r"deleted|removed|moved|renamed|copied|built|started|enabled|disabled|opened|merged|resolved|published|"
        r"prepared|drafted|cleaned(?: up)?|cleared|erased|archived|trashed|emptied|backed up|downloaded|zipped|"
        r"unzipped|packed|noted|(?:re-?)?ran|run|executed|launched|(?:un)?installed|(?:re)?built|compiled|deployed|"
        r"restarted|stopped|killed|tested|tagged|committed|pushed|pulled|cloned|rebooted|upgraded|migrated|synced|"
        r"turned (?:on|off)|running|verified",
        rf"\b(?:files?|folders?|director(?:y|ies)|script|disk|workspace|repo(?:sitory)?|trash|branch|commands?|scripts?|"
        rf"tests?|program|build|servers?|services?|containers?|packages?|firewall|images?|database|changes|pytest|npm|"
        rf"pip|docker|git|process|benchmark|linter|app|pull request|release|nginx|github)\b|{FILE}",
    ),
    ClaimedAction(  # messages
        r"sent|e-?mailed|notified|messaged|forwarded|posted|texted|published|replied|shared|told|informed|uploaded|"
        r"submitted|delivered|let (?!me\b|us\b|you\b)\w+ know",
        r"\b(?:e-?mails?|sms|notifications?|telegram|slack|whatsapp|discord|invit\w+|group|channel|team)\b|"
        r"\bto (?!you\b|your (?:message|question)|the chat)\w+|\b(?:tell|told|text|texted|messaged?|asked|"
        r"let) (?!you\b|me\b|us\b)\w+|\bshared? .{1,40} with (?!you\b)",
    ),
    ClaimedAction(  # jobs and subagents
        r"scheduled|set(?: up)?|created|added|booked|arranged|reserved|ordered|cancelled|delegated|handed|spawned|"
        r"started|assigned|dispatched|launched",
        r"\b(?:reminders?|alarms?|timers?|cron|(?:daily|weekly|scheduled) jobs?|meetings?|calendar|appointments?|"
        r"room|sub-?agents?|background)\b",
    ),
    ClaimedAction(
        r"searched|looked (?:up|it up|through|into)|googled|browsed|fetched|checked|scanned|read|inspected|opened|"
        r"gone through|went through|visited",
        rf"\b(?:web|internet|online|news|website|folders?|workspace|repo(?:sitory)?|logs?|weather|forecast|disk|"
        rf"calendar|inbox|notes)\b|{FILE}",
        only_looks=True,
    ),
)
_CHINESE = (
    ClaimedAction(
        r"创建|新建|建[立好了]|写[入好到进在]?|保存|存[入到进好为]|生成|修改|改[好成为名]?|更新|编辑|添加|追加|加[入到上]|"
        r"替换|记[录到入在]|导出|重构|修复|配置|放[到进在好]|更换|换[成好掉]|缩短|删除?|移除|清理|清空|移动?[到至]?|重命名|"
        r"复制|拷贝|备份|归档|解压|打包|切换|运行|执行|跑|启动|重启|停止|停掉|安装|卸载|部署|编译|构建|测试|提交|推送|拉取|"
        r"克隆|升级|关闭|关掉|杀掉|装|打[上好]|合并|启用|禁用|迁移|同步|下载|发[送给到出布了]?|寄|通知|转发|告知|告诉|回复|分享|"
        r"上传|设[置定好]?|安排|加到|预[约订定]|提醒|取消|定|委派|交给|派",
        rf"文件夹?|目录|脚本|磁盘|工作区|仓库|本地|桌面|回收站|分支|命令|测试|代码|程序|服务|容器|依赖|软件包|进程|项目|"
        rf"数据库|应用|镜像|防火墙|合并请求|标签|修改|包|npm|pip|docker|git|pytest|nginx|邮件|邮箱|短信|通知|微信|飞书|群|"
        rf"telegram|slack|(?:给|告诉|通知|发到)(?!你|您|我|大家)[\w\u4e00-\u9fff]+|提醒|闹钟|定时|日程|会议|日历|每天|"
        rf"每周|任务|预订|\d+ ?点|子代理|后台|{FILE}",
    ),
    ClaimedAction(
        r"搜索?到?|查[询找看阅到]?|检[索查]|抓取|访问|读取?|打开|浏览|看|翻",
        rf"网上|上网|网页|网站|文件夹?|目录|日志|工作区|仓库|天气|邮箱|价格|{FILE}",
        only_looks=True,
    ),
)


class Language(NamedTuple):
    """Patterns for claims in one language. `VERBS` is replaced by the verbs of an action."""

    hint: str
    """A text without a match claims nothing. Small, so that most answers need none of the other patterns."""
    actions: tuple[ClaimedAction, ...]
    first_person: str
    passive: str
    """A passive sentence; a claim only if the action was requested."""
    finished: str
    promise: str
    no_promise: str
    no_claim: str
    """A clause that matches is no claim: a denial, a question, quoted speech."""
    other_time: str
    """A sentence that matches is about another time, or conditional."""
    not_asked: str
    """A request that matches asks for information: how, what, why, what was done before."""
    text_wanted: str
    """A request that matches asks for a text, such as a story or a translation."""
    nothing_done: str
    other_actions: str


_OPENING = r"(?:(?:done|ok(?:ay)?|sure|all set|great|perfect|got it|alright|yes|fixed)\b[\s!.,:–—-]*)?"
ENGLISH = Language(
    hint=r"\b(?:i|we|let|\w+(?:ed|ing)|(?:re)?(?:wrote|written|made|put|set|built|ran|run)|sent|told|read|gone|went|done|"
    r"complete|taken care|on it|give me|moment|hang)\b",
    actions=_ENGLISH,
    first_person=r"(?:^\W*|[,:;!–—(-]\s*|\b(?:and|so|then|but|yes|okay|done|now|also|finally) )(?:I|we)(?:['’]ve|"
    r" have)? (?:(?:just|now|already|also|successfully|then|gone ahead and|went ahead and) )*(?:\w+(?:ed|ote|ook|ead|"
    r"ent|ade) [^.;:?]{0,60}? and (?:then |also )?)?(?:VERBS)\b",
    passive=r"\b(?:has|have) (?:now |just |already |also |all |both )*been (?:successfully |now )?(?:VERBS)\b|"
    r"\b(?:was|were|is|are) (?:now |all |already |successfully )*(?:VERBS)\b|"
    rf"^\W*{_OPENING}(?:successfully |just )?(?!(?:run|set|put|read|running)\b)(?:VERBS)\b|"
    r"\b(?:VERBS)(?: successfully| now)?[.!✅ ]*$",
    finished=r"^(?:(?:ok|okay|sure|great|perfect|yes)[\s!.,—-]*)?(?:(?:it|that|this|everything)(?:['’]s| is|"
    r" has been) )?(?:all )?(?:done|set|finished|completed?|taken care of)(?: for you| now)?[\s!.✅👍]*$",
    promise=r"\b(?:I['’]ll|I will|I['’]m going to|let me|I shall) (?!know|keep|be (?:glad|happy|here)|explain|assume|"
    r"think|remember|try to|need|use|call|give|show|say|walk|put it|rephrase|guess|never|always|start with)\w+|"
    r"\b(?:I['’]m|I am) (?:now |currently )?(?:on it|(?!going|afraid|here|not|doing|looking forward|sorry|"
    r"sure)\w+ing)\b|"
    rf"^{_OPENING}(?:now )?\w+ing (?:the|your|a|on|\w+\.\w+)\b.*(?:now|wait|\.\.\.|…)|"
    rf"^{_OPENING}(?:working on it|on it|"
    rf"give me a|one moment|hang on)\b",
    no_promise=r"\b(?:if|unless|until|whether|once you|when(?:ever)? you|as soon as you|would|could|can|can['’]t|"
    r"cannot|not|won['’]t|please (?!wait|hold|stand)|send me|give me the|next time|future|from now on|always|"
    r"happy to|together|for example|step by step|in your|explain|how to|you can|tell me)\b|\?|:.*\w",
    no_claim=r"\b(?:would|could|should|might|can|cannot|can['’]t|not|never|nothing|none|no|neither|nor|\w+n['’]t|"
    r"says?|said|means?|shows?|pretend|make sure|ensure|tells? you|told me|you(?:['’]ve| have)|like|which|who|"
    r"mentally|by hand|in my head)\b|\?\s*$",
    other_time=r"\b(?:if|once|when|whenever|after|until|before|unless|whether|suppose|imagine|assuming|earlier|"
    r"previously|last (?:time|turn|week|month|year|night)|yesterday|ago|already|in (?:my|the|our) (?:previous|last|"
    r"earlier|first)|at the (?:start|beginning)|back (?:then|when|in)|this morning|on (?:mon|tues|wednes|thurs|fri|"
    r"satur|sun)day)\b",
    not_asked=r"^\W*(?:i(?:['’]m| am| just| already| have|['’]ve| will|['’]ll| was| did)|how|what(?!['’]s in| is in)|"
    r"why|who|whose|when|where|which|is|are|am|does|do (?:i|you|we)|did|have(?! a look)|has|had|was|were|should|"
    r"explain|describe|compare|define|tell me|teach|suggest|recommend|list the|give me|i wonder|thanks?|hi|hello|"
    r"can i|could i|may i|(?:can|could) you (?:explain|tell|describe|teach)|walk me|suppose|imagine|best way|"
    r"difference|and (?:the|where))\b|\b(?:did you|have you|so far|last time|recap|remember when)\b|\bright\?$",
    text_wanted=r"\b(?:story|poem|essay|letter|translat\w+|role-?play|pretend|act as|you are (?:a|an|now)|dialogue|"
    r"conversation|sentences?|paragraphs?|lyrics|jokes?|captions?|(?<![@.])examples?(?!\.)|sample|template|summary|summari\w+|"
    r"rewrite|rephrase|proofread|grammar|novel|tweet|speech|slogan|haiku|scene|diary|blog post|outline|draft|"
    r"headline|release notes|status update|commit message|changelog entry|reply to|(?:do|would|should) (?:i|you) say|"
    r"correct this|polish|write (?:me )?(?:an? )?(?:\w+ )?(?:e-?mail|message|note|reply|text|review))\b|```|"
    r"\n.*\n.*\n|\[(?:image|file):",
    nothing_done="(No action was executed in this turn.)",
    other_actions="(This turn only used {tools}; the action described above was not executed.)",
)
_FOR_YOU = r"(?:[为帮给替](?:你|您|大家))"
_FEW_CHARS = r"[^，。；]{0,24}?"
CHINESE = Language(
    hint="",
    actions=_CHINESE,
    first_person=rf"我(?:们)?(?:也|都|刚刚?|现在)?(?:已经?|刚刚?|成功){_FEW_CHARS}(?:VERBS)|(?:已经?|刚刚?|"
    rf"成功)(?:经)?{_FOR_YOU}{_FEW_CHARS}(?:VERBS)|我(?:们)?(?:又|还|也|先|"
    rf"就)?(?:[把将给在用去向]{_FEW_CHARS})?(?:VERBS)[^，。；的]{{0,16}}?(?:了|过)",
    passive=rf"(?:已经?|均已|都已|现已|成功|都|全部){_FEW_CHARS}(?:VERBS)|"
    rf"(?:VERBS)(?:了[。！!~ ✅]*$|成功|完成|完毕|完了|"
    rf"好了|好啦|掉了)|[把将]{_FEW_CHARS}(?:VERBS)[^，。；]{{0,20}}?了|^(?:并且?|同时|也)(?:已经?)?{_FEW_CHARS}(?:VERBS)|"
    r"^(?:好的?[，！,! ]*)?(?:VERBS)[^，。；的]{0,20}?了",
    finished=r"^(?:好的?|没问题|是的|嗯)?[，！,!。 ]*(?:都|全部|已经?|任务|一切)*(?:搞定|完成|办好|弄好|做好|"
    r"处理[好完]|设好|改好)(?:了|啦)?[！!。✅ ]*$",
    promise=r"请?稍[等候]|等我?一下|马上|这就|正在|立即|现在就|我(?:来|去|先|会|帮[你您])|稍后|接下来",
    no_promise=r"如果|要是|一旦|等[你您]|(?:告诉|发给|贴给|传给|给)我|请(?!稍)|需要|的话|可以|能|想要|要不要|是否|"
    r"[吗呢？?]|随时|下次|以后|今后|从现在起|[你您]确认|拿到|不|没|一起|一步步|解释|介绍|说明|举例|例如|假设|说说|聊|"
    r"讲|回答|分析给|总结一|记住|尽[力量]|建议|保持|首先|[你您](?:先|可|要)|[：:].*\w",
    no_claim=r"没(?!问题)|是否|未|不|无法|别|尚|[吗么呢]?[？?]\s*$|吗|可以|能够|应该|可能|也许|需要|请(?!求)|显示|"
    r"提示|表示|意味|说明|说|确[保认]|(?<![镜图影头])像|用[来于]|会被|它|他|她|人们|许多|[你您](?:会|已|在|将|把|要|"
    r"都|刚|之前|发|给|上传|提供|说|提|贴|写)|^[你您]的|(?:函数|方法|指令|模块|系统|浏览器|程序|公司|政府|开发者|"
    r"作者|科学家)(?:会|已|在|将|把|要|都|的)",
    other_time=r"如果|若|假如|要是|假设|一旦|只要|除非|直到|之后|以后|的时候|当.*时|[完好]后|之前|刚才|早些|上次|"
    r"昨[天晚]|先前|前面|上[一周]|上个?月|上面|此前|那时|前[天几]|今早|早上|最初|一开始|当时|早就|前(?:就|已)",
    not_asked=r"怎么|如何|怎样|什么(?!时候叫)|为啥|为何|是否|哪[个些里种]|多少|解释|介绍|区别|讲|说说|聊聊|教我|原理|"
    r"优缺点|建议|推荐|^谢谢|^你好|是不是|(?<!帮我)(?<!一下)[吗么][？?]?\s*$|呢[？?]?\s*$|你(?:刚才?|之前|上次|昨天|"
    r"已经)|了(?:吗|没有?)|有没有|记得|目前为止",
    text_wanted=r"故事|诗|作文|翻译|(?<!编)译[成为]|扮演|假装|你现在是|你是一[个名位]|草拟|起草|拟一|例句|"
    r"造.{0,2}句|改写|润色|台词|小说|笑话|歌词|对话|文案|演讲|日记|口号|标题|总结|概括|缩写|扩写|续写|范文|模板|示例|"
    r"举例|例子|语法|周报|检讨|情书|祝福语|写(?:一|个|段)*[封篇首段句条则]|怎么说|```|\n.*\n.*\n|\[(?:image|file):",
    nothing_done="（本轮没有执行任何操作。）",
    other_actions="（本轮只用了 {tools}，上面所说的操作并没有执行。）",
)
_WANTS_ACTION = (
    rf"\b(?:save|store|(?:to|in|as|into) (?:a |the |my )?(?:new )?files?|send|run|post|remind|schedule|sub-?agent|"
    rf"e-?mail (?:it|this))\b|{FILE}|保存|存[到成为]|写[入到进]|文件[里中夹]|发[送给到]|运行|执行|提醒我|子代理"
)
"""A request that matches wants an action besides a text."""
_READ_COMMAND = (
    r"\s*(?:(?:(?:ls|cat|head|tail|grep|rg|wc|stat|which|file|du|df|pwd|tree|less|more)\b|git (?:status|log|diff|"
    r"show)\b|find\b(?!.*-(?:delete|exec)))[^>]*)?"
)
"""A shell command that only reads."""


def find_claim(
    text: str, rows: Sequence[ChatMessage], tools: ToolRegistry, turn: str
) -> tuple[str | None, frozenset[str]]:
    """Return the unsupported claim in this turn's answer, if any, and the names of the tools that were used."""
    turn_rows = [row for row in rows if row.get("turn_id") == turn]
    requests = [row for row in turn_rows if row["role"] == "user" and not is_synthetic(row)]
    request = text_of(requests[-1]["content"]) if requests else ""
    called = frozenset(str(row.get("name")) for row in turn_rows if row["role"] == "tool" and not had_no_effect(row))
    if has_acted(turn_rows, tools):
        return None, called
    claim = unsupported_claim(text, request, has_looked=bool(called), has_tools=bool(len(tools)))
    if claim is not None and not _asks_for_action(request, text) and has_acted(rows, tools):
        return None, called  # it tells of an earlier turn
    return claim, called


def has_acted(rows: Sequence[ChatMessage], tools: ToolRegistry) -> bool:
    """Return whether a call in these rows may have changed something, or a subagent has reported."""
    calls = {call["id"]: call["function"]["arguments"] for row in rows for call in row.get("tool_calls") or ()}
    return any(
        row.get("origin") == Origin.SUBAGENT
        if row["role"] == "user"
        else row["role"] == "tool"
        and not had_no_effect(row)
        and _acts(tools.get(str(row.get("name"))), calls.get(row["tool_call_id"], ""))
        for row in rows
    )


def _acts(tool: Tool | None, arguments: str) -> bool:
    if tool is None:
        return True
    given = parse_arguments(arguments)[0]
    if tool.effect is Effect.READ or not tool.acts or given.get("action") == "list":
        return False
    parts = re.split(r"\|\|?|&&|;|\n", str(given.get("command", "")))
    return tool.name != "exec" or not all(_compile(_READ_COMMAND, 0).fullmatch(part) for part in parts)


def unsupported_claim(text: str, request: str, *, has_looked: bool = False, has_tools: bool = True) -> str | None:
    """Return the first sentence of a final answer that claims an action, or None, for a turn in which no tool acted.

    `request` is the person's last message; `has_looked`: whether a tool that only reads was used.
    """
    language = _language_of(text)
    if language is None or not _matches(language.hint, text):
        return None
    request = _without_quotes(request[:_MAX_REQUEST_CHARS])
    asks_for_action = _asks_for_action(request, text)
    wants_text = _matches((_language_of(request) or language).text_wanted, request)
    if wants_text and not (asks_for_action and _matches(_WANTS_ACTION, request)):
        return None
    shows_code = "```" in text or ("|" in text and bool(_compile(_TABLE_LINE, re.MULTILINE).search(text[:_MAX_CHARS])))
    asked = asks_for_action and bool(request)

    @cache
    def is_wanted(thing: str) -> bool:
        return asked and _matches(thing, request)

    sentences = [sentence for sentence in _sentences(text) if len(sentence) <= _MAX_SENTENCE_CHARS]
    for sentence in sentences:
        actions = list(_actions_in(sentence, language, is_wanted, asked=asked, shows_code=shows_code))
        if actions and not (has_looked and any(action.only_looks for action in actions)):
            return sentence
        may_finish = asks_for_action and not has_looked and _matches(_WANTS_ACTION, request)
        if may_finish and _matches(language.finished, sentence):
            return sentence
    may_promise = has_tools and asks_for_action and not shows_code and len(text) <= _SHORT_ANSWER_CHARS
    if may_promise and not _matches(language.no_promise, text):
        return next((sentence for sentence in sentences[-2:] if _matches(language.promise, sentence)), None)
    return None


def _asks_for_action(request: str, answer: str) -> bool:
    """Return whether a request does not just ask for information."""
    language = _language_of(request) or _language_of(answer)
    return language is None or not _matches(language.not_asked, _without_quotes(request[:_MAX_REQUEST_CHARS]))


def _actions_in(
    sentence: str, language: Language, is_wanted: Callable[[str], bool], *, asked: bool, shows_code: bool
) -> Iterator[ClaimedAction]:
    """Yield the actions that a sentence claims. `is_wanted`: whether the request asks for this thing; `asked`: whether
    it asks for an action. `shows_code`: the answer contains code or a table, which is then mostly what was created.
    """
    if _matches(language.other_time, sentence):
        return
    for clause in re.split(r", |; |[，；](?!\d)", sentence):
        if _matches(language.no_claim, clause):
            continue
        for action in language.actions:
            thing = FILE if shows_code else action.thing
            is_about_thing = _matches(thing, sentence) or (not shows_code and is_wanted(thing))
            # a passive such as "it is read at start" is no claim
            patterns = (language.first_person, *((language.passive,) if asked and not action.only_looks else ()))
            if is_about_thing and any(_matches(pattern.replace("VERBS", action.verbs), clause) for pattern in patterns):
                yield action


def claim_feedback(claim: str, tools_available: Sequence[str]) -> str:
    """The message that asks the model to perform the claimed action or to say that it was not done."""
    tools_hint = f" Your tools: {', '.join(tools_available)}." if tools_available else ""
    return (
        f'{_FEEDBACK_PREFIX}"{claim}" But no tool call of this turn did that, so it has not happened. '
        "If it should be done, do it now, with a tool call and without announcing it. If it was done by a command, "
        "look at its result with a tool. "
        f"If it cannot or need not be done, answer again and say plainly that it was not done.{tools_hint}"
    )


def is_claim_feedback(row: ChatMessage) -> bool:
    return row.get("role") == "user" and is_synthetic(row) and text_of(row.get("content")).startswith(_FEEDBACK_PREFIX)


def claim_note(text: str, tools_called: Collection[str]) -> str:
    """The note to the person after an answer that repeats the claim; in the language of the answer."""
    language = _language_of(text) or ENGLISH
    return (
        language.other_actions.format(tools=", ".join(sorted(tools_called))) if tools_called else language.nothing_done
    )


_FENCED = r"```.*?(?:```|\Z)|~~~.*?(?:~~~|\Z)"
_QUOTED_LINE = r"^ {0,3}>.*$"
_TABLE_LINE = r"^\s*\|.*\|\s*$"
_INLINE_CODE = r"`([^`\n]*)`"
_QUOTED = (
    r"“[^”\n]{1,300}”|\"[^\"\n]{1,300}\"|「[^」\n]{1,300}」|『[^』\n]{1,300}』|‘[^’\n]{1,300}’|"
    r"(?<=\s)'[^'\n]{1,300}'(?=[\s.,;:!?]|$)"
)
_MARKUP = r"[*_#]{1,3}(?=\S)|(?<=\S)\*{1,3}|^[ \t]*(?:[-*+•]|\d{1,2}[.)、])[ \t]+"
_SENTENCE = r"(?:[^.!?。！？；;\n]|[.](?=\w)|[.!?](?=[\"”’)]))+[.!?。！？；;…]*|\n"


def _sentences(text: str) -> list[str]:
    """The sentences without code, quotes and tables."""
    text = _without_fences(text)
    for mark, line in ((">", _QUOTED_LINE), ("|", _TABLE_LINE)):
        text = _compile(line, re.MULTILINE).sub("", text) if mark in text else text
    text = _compile(_MARKUP, re.MULTILINE).sub("", _without_quotes(text))
    sentences = (sentence.strip() for sentence in _compile(_SENTENCE, 0).findall(text))
    return [sentence for sentence in sentences if any(map(str.isalnum, sentence))]


def _without_fences(text: str) -> str:
    text = text[:_MAX_CHARS]
    return _compile(_FENCED, re.DOTALL).sub("\n", text) if "```" in text or "~~~" in text else text


def _without_quotes(text: str) -> str:
    """Replace code and quotes by placeholders, except file names."""
    if "`" in text:
        text = _compile(_INLINE_CODE, 0).sub(lambda code: "CODE" if " " in code[1].strip() else code[1], text)
    if not text.isascii() or "'" in text or '"' in text:
        text = _compile(_QUOTED, 0).sub(
            lambda quote: quote[0] if "." in quote[0] and " " not in quote[0] else "QUOTE", text
        )
    return text


def _language_of(text: str) -> Language | None:
    """The language of a text; None if it is not supported."""
    text = _without_fences(text)
    han = 0
    if not text.isascii():
        if any("\u3040" <= char <= "\u30ff" or "\uac00" <= char <= "\ud7af" for char in text):
            return None
        han = sum("\u4e00" <= char <= "\u9fff" for char in text)
    words = _compile("[A-Za-z]{2,}", 0).findall(text)
    if han and han * 2 >= len(words):
        return CHINESE
    return ENGLISH if words else None


@cache
def _compile(pattern: str, flags: int) -> re.Pattern[str]:
    return re.compile(pattern, flags)


def _matches(pattern: str, text: str) -> bool:
    return _compile(pattern, re.IGNORECASE).search(text) is not None
