"""Lists the messages of the product, from its source: errors with their codes, details of skips, log lines."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("neatpack", "pipeline", "loaders")
LOGGED = ("warning", "info", "error", "warn", "write_line", "to_stderr")


def list_messages() -> list[str]:
    """Return a line for each message: file, code or call, and the text with its placeholders."""
    lines = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents):
                tree = ast.parse(path.read_text())
                name = str(path.relative_to(ROOT))
                lines += [f"{name} {line}" for line in sorted(_messages(tree))]
    return lines


def _messages(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield f"{_name(node.exc.func)}{_code(node.exc)}: {_text(node.exc)}"
        elif isinstance(node, ast.Call) and _name(node.func) == "Problem" and len(node.args) == 2:
            yield f"Problem [{_words(node.args[1])}]: {_words(node.args[0])}"
        elif isinstance(node, ast.Call) and _name(node.func) == "Skip":
            given = {str(keyword.arg): keyword.value for keyword in node.keywords}
            if {"reason", "detail"} <= given.keys():
                yield f"Skip {_words(given['reason'])}: {_words(given['detail'])}"
        elif isinstance(node, ast.Call) and _name(node.func) in LOGGED and node.args:
            yield f"{_name(node.func)}: {_text(node)}"


def _name(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else ast.unparse(func)


def _code(call: ast.Call) -> str:
    given = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
    return f" [{given[0].value if isinstance(given[0], ast.Constant) else ast.unparse(given[0])}]" if given else ""


def _text(call: ast.Call) -> str:
    return " | ".join(_words(each) for each in call.args)


def _words(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value).replace("\n", "\\n")
    if isinstance(node, ast.JoinedStr):
        return "".join(
            f"{{{ast.unparse(each.value)}}}" if isinstance(each, ast.FormattedValue) else _words(each)
            for each in node.values
        )
    return ast.unparse(node)


def raised_without_code(kinds: tuple[str, ...]) -> list[str]:
    """Return where an error of these kinds is raised without a literal code."""
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and _name(node.func) in kinds and not _code(node):
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


if __name__ == "__main__":
    (Path(__file__).parent / "messages.txt").write_text("\n".join(list_messages()) + "\n")
