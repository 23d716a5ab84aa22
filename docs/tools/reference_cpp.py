"""Entries of the public C++ headers: each class, function, field and constant with the comment above it or behind it
(`///<`). Declarations without an empty line between them share the comment of the first."""

import re

LIST = "cmake/public_headers.txt"
INCLUDE = re.compile(r'#include "moonhalo/([^"]*)"')
SCOPE = re.compile(
    r"(?:template\s*<.*?>\s*)?(?:(?P<enum>enum(?: class)?)|class|struct)\s+(?P<name>\w+)(?: final)?"
    r"(?:\s*:\s*(?P<rest>[^:].*))?$",
    re.DOTALL,
)
HIDDEN = re.compile(
    r"^(?:friend\b|(?:class|struct) \w+;|enum class \w+ : \w+;|using [\w:]+::\w+;|namespace \w+ =|extern\b|static_assert\b)"
)
FUNCTION = re.compile(r"(?P<name>operator\s*(?:\(\)|\[\]|<=>|[^\s(\w]+|\w+)|~?\w+(?:::~?\w+)*)\s*\(")
TEMPLATE = re.compile(r"\[\[.*?\]\]|<[^<>]*(?:<[^<>]*(?:<[^<>]*>[^<>]*)*>[^<>]*)*>|requires .*?> ")
DEFAULTED = re.compile(r"= (?:delete|default);?$")
SAME = re.compile(r"The same|Does the same|Like |As ")
COLLECTIVE = re.compile(r"[Cc]ollective|Runs on this rank alone")
SHAPES = re.compile(
    r"shape|size|dtype|\bdims?\b|element|block|placement|scalar|flat|\[[\w. ,]+\]|rows|same|spec|gradient|norm|number"
)


def included_by_users(root):
    """[(name that users include, source)] of the C++ headers that are installed."""
    rows = [
        line.split() for line in (root / LIST).read_text(encoding="utf-8").splitlines() if line[:1] not in ("#", "")
    ]
    return [(row[0], row[1]) for row in rows if len(row) == 2]


def public_headers(root):
    """The headers that users include, and all of this project that they include; by path in the tree."""
    found = []
    waiting = [source for _, source in included_by_users(root)]
    while waiting:
        name = waiting.pop(0)
        if name in found or not (root / name).exists():
            continue
        found.append(name)
        waiting += INCLUDE.findall((root / name).read_text(encoding="utf-8"))
    return sorted(found)


class CppEntry:
    """A declaration. `name` has its scopes, `kind` is class, enum, function, value or macro."""

    def __init__(self, header, line, name, kind, text, comment, owner):
        self.header, self.line, self.name, self.kind, self.text = header, line, name, kind, text
        self.comment, self.owner, self.before = comment, owner, None

    def place(self):
        return f"{self.header}:{self.line}: {self.name}"

    def words(self):
        """The comment with those of the classes around it, which hold for all members, and with that of the declaration
        before, where it says that this one is the same."""
        before = self.before.words() if self.before and SAME.match(self.comment) else ""
        return " ".join((self.comment, before, self.owner.words() if self.owner else ""))


class Header:
    """Reads one header from its first character to its last."""

    def __init__(self, path, text):
        self.path, self.text, self.at = path, text, 0
        self.entries, self.comment, self.about = [], "", ""
        self.last = None  # the entry before, while no empty line follows it

    def read(self):
        self.scope((), None, True)
        return self.entries

    def skip(self, pattern):
        match = re.compile(pattern, re.DOTALL).match(self.text, self.at)
        if match:
            self.at = match.end()
        return match

    def scope(self, names, owner, is_public):
        while self.at < len(self.text):
            if self.skip(r"[ \t]*\n"):
                if self.comment and not self.entries and not self.about:
                    self.about = self.comment
                self.last, self.comment = None, ""
            elif self.skip(r"\s*\}[^\n;]*;?[^\n]*\n?"):
                return
            elif match := self.skip(r"[ \t]*/// ?(?!<)([^\n]*)\n"):
                self.comment += match[1] + "\n"
            elif match := self.skip(r"[ \t]*#define (\w+)(\([^)\n]*\))?(?:[^\n]*\\\n)*[^\n]*\n"):
                if self.comment or self.last and self.last.kind == "macro":
                    self.add(names, match[1], "macro", match[1] + (match[2] or ""), match.start(), None)
            elif self.skip(r"[ \t]*(?://|#)[^\n]*\n"):
                pass
            elif match := self.skip(r"\s*(public|private|protected):[^\n]*\n"):
                is_public, self.last, self.comment = match[1] == "public", None, ""
            elif match := self.skip(r"\s*(?:inline )?namespace ([\w:]*)\s*\{"):
                if self.comment and not self.about:
                    self.about = self.comment
                self.comment = ""
                self.scope((*names, *match[1].split("::")), None, "detail" not in match[1])
            else:
                self.declaration(names, owner, is_public)

    def declaration(self, names, owner, is_public):
        self.skip(r"\s*")
        begin = self.at
        text, ends_by_body = self.head()
        scope = SCOPE.match(text) if ends_by_body and "(" not in re.sub(r"alignas\(.*?\)", "", text) else None
        if scope and not scope["enum"]:
            is_struct = "struct " in text[: scope.start("name")]
            added = self.add(names, scope["name"], "class", text, begin, owner) if is_public else None
            self.comment, self.last = "", None
            self.skip(r"\s*\{[ \t]*\n?")
            self.scope((*names, scope["name"]), added, is_public and is_struct)
            self.last = None
            return
        if scope:
            body = self.body()
            added = self.add(names, scope["name"], "enum", f"{text} {{{body}}}", begin, owner) if is_public else None
            if added:
                self.enumerators(added, body)
            self.skip(r"\s*;")
        elif ends_by_body:
            self.body()
            self.skip(r";")
        trailing = self.skip(r"[ \t]*///< ?([^\n]*)\n")
        if not trailing:
            self.skip(r"[ \t]*(?://[^\n]*)?\n")
        if not scope and is_public and not HIDDEN.match(text) and not DEFAULTED.search(text):
            self.member(names, text, begin, owner, trailing[1] if trailing else "")
        if trailing:
            self.last = None
        self.comment = ""

    def member(self, names, text, begin, owner, trailing):
        if trailing:
            self.comment = (self.comment + "\n" + trailing).strip()
        head = text.split(" = ")[0] if "operator" not in text and "(" not in text.split(" = ")[0] else text
        function = FUNCTION.search(TEMPLATE.sub(self.blank, head))
        name = function["name"] if function and not text.startswith("using ") else None
        if name:
            if "::" in name or name.startswith("~"):  # defined here, declared above
                return
            self.add(names, name, "function", text, begin, owner)
            return
        if text.startswith("using "):
            found = re.match(r"using (\w+)", text)
        else:
            plain = TEMPLATE.sub(self.blank, text).split(",")[0].rstrip()
            found = re.search(r"(\w+)(?:\[[^\]]*\])*(?:\s*=.*|\s*\{.*)?;?$", plain, re.DOTALL)
        self.add(names, found[1] if found else text, "value", text, begin, owner)

    @staticmethod
    def blank(match):
        return "_" * len(match[0])

    def enumerators(self, owner, body):
        for row in body.splitlines():
            code, _, comment = row.partition("///<")
            for name in re.findall(r"\b(k\w+)\b", code.partition("//")[0]):
                if comment.strip():
                    owner.comment += f"\n    {name}: {comment.strip()}"

    def head(self):
        """The text of a declaration up to its end or to the body of it, and whether a body follows."""
        begin, depth = self.at, 0
        while self.at < len(self.text):
            letter = self.text[self.at]
            if self.skip(r"//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'"):
                continue
            if letter in "([":
                depth += 1
            elif letter in ")]":
                depth -= 1
            elif letter == ";" and depth == 0:
                self.at += 1
                return self.clean(begin), False
            elif letter == "{":
                before = self.clean(begin)
                is_body = SCOPE.match(before) or "(" in before and not before.endswith("=")
                begin_of_body = self.at
                self.body()
                # An initializer of a constructor, a{1}, is followed by another one or by the body.
                is_initializer = re.search(r"\)(?: noexcept)? : ", before) and re.match(
                    r"\s*[,{]", self.text[self.at :]
                )
                if depth == 0 and is_body and not is_initializer:
                    self.at = begin_of_body
                    return re.sub(r"\)( noexcept)? : \w+[({].*$", r")\1", before), True
                continue
            self.at += 1
        return self.clean(begin), False

    def clean(self, begin):
        return re.sub(r"\s+", " ", re.sub(r"//[^\n]*", "", self.text[begin : self.at])).strip()

    def body(self):
        """What is between braces; reads behind them."""
        self.skip(r"\s*")
        begin, depth = self.at + 1, 0
        while self.at < len(self.text):
            if self.skip(r"//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'"):
                continue
            letter = self.text[self.at]
            depth += (letter == "{") - (letter == "}")
            self.at += 1
            if depth == 0:
                return self.text[begin : self.at - 1]
        return self.text[begin:]

    def add(self, names, name, kind, text, begin, owner):
        comment = self.comment.strip("\n")
        shares = not comment and self.last is not None
        if shares:
            comment = self.last.comment
        qualified = "::".join((*names, name) if kind != "macro" else (name,))
        line = self.text.count("\n", 0, begin) + 1
        entry = CppEntry(self.path, line, qualified, kind, text.rstrip(";").strip(), comment, owner)
        entry.shares = shares
        entry.before = self.entries[-1] if self.entries else None
        is_repeated = not comment and any(
            one.name == qualified and one.kind == kind and one.comment for one in self.entries
        )
        if not (is_repeated and self.text[begin:].startswith("template")):
            self.entries.append(entry)
            self.last = entry
        self.comment = ""
        return entry


def read_cpp(root):
    """(about, entries) of each public header, by path. `about` is the comment of the whole header."""
    headers = {}
    for name in public_headers(root):
        header = Header(name, (root / name).read_text(encoding="utf-8"))
        header.read()
        headers[name] = (header.about, header.entries)
    return headers


def lacks_of(entry, about):
    """What a whole entry has and this one lacks."""
    is_constructor = entry.owner and entry.name.split("::")[-1] == entry.owner.name.split("::")[-1]
    last = entry.name.split("::")[-1]
    is_named = entry.owner and entry.kind == "value" and re.search(rf"\b{re.escape(last)}\b", entry.owner.comment)
    if not entry.comment.strip() and not is_constructor and not is_named and last != "operator=":
        yield "no comment"
        return
    if entry.kind != "function" or is_constructor or "operator" in entry.name:
        return
    words = entry.words() + " " + about
    is_getter = re.search(r"\(\) const\b", entry.text) is not None
    if not COLLECTIVE.search(words) and not is_getter:
        yield "collective or not?"
    if "at::Tensor" in entry.text and not SHAPES.search(words):
        yield "a tensor without its shape or dtype"


def check_cpp(root):
    """(number of entries, problems of the headers)."""
    problems, count = [], 0
    for about, entries in read_cpp(root).values():
        count += len(entries)
        problems += [f"{entry.place()}: {lack}" for entry in entries for lack in lacks_of(entry, about)]
    return count, problems


def self_test():
    """A header in which each kind of declaration lacks something, or nothing."""
    text = """
/// A mesh. Not collective.
class Mesh {
 public:
  explicit Mesh(int size) : size_{size}, name_("a") {}
  int size() const { return size_; }
  /// The name.
  std::string name() const;

  std::string to_string() const;
  Mesh(const Mesh&) = delete;

 private:
  int hidden();
  int size_;
};
/// Options; `first` is one of them.
struct Options {
  int first = 0;
  std::map<std::string, int> second = {};
  int third = 0;  ///< the third
};
enum class Kind { kA };
/// Sums.
at::Tensor sum(const at::Tensor& x);
/// Sums a tensor of any shape. Collective.
at::Tensor sum_all(const at::Tensor& x, Options options = {.first = 1});
at::Tensor shares_the_comment(const at::Tensor& x);

template <class T>
T undocumented(T x) {
  return x;
}
"""
    header = Header("a.h", "namespace moonhalo {" + text + "}  // namespace moonhalo\n")
    found = [
        f"{entry.name.removeprefix('moonhalo::')}: {lack}" for entry in header.read() for lack in lacks_of(entry, "")
    ]
    expected = [
        "Mesh::size: no comment",
        "Mesh::to_string: no comment",
        "Options::second: no comment",
        "Kind: no comment",
        "sum: collective or not?",
        "sum: a tensor without its shape or dtype",
        "undocumented: no comment",
    ]
    assert found == expected, found
