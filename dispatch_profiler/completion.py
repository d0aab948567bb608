"""Completion scripts for shells, generated from the commands' parsers, so that they match `--help`."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

#: Metavariables of options and arguments that take a path.
_PATHS = ("DIR", "FILE", "RECORDS", "BASE", "NEW", "LIBRARY", "ORIGINAL", "INCREMENTAL", "OUTPUT", "COMMANDS")


@dataclass(frozen=True)
class Option:
    """An option: its spellings, its purpose and its values. `choices` is empty if any value is allowed."""

    names: tuple[str, ...]
    purpose: str
    takes_value: bool
    choices: tuple[str, ...]
    takes_path: bool


@dataclass(frozen=True)
class Subcommand:
    """A subcommand with its options and positional arguments."""

    name: str
    purpose: str
    options: tuple[Option, ...]
    arguments: tuple[str, ...]
    takes_path: bool


def completion_script(
    shell: str,
    program: str,
    aliases: Mapping[str, str],
    parsers: Mapping[str, argparse.ArgumentParser],
    purposes: Mapping[str, str],
) -> str:
    """The completion script for `program` and its `aliases`, for `shell`, one of `SHELLS`."""
    commands = [_command(name, parser, purposes[name]) for name, parser in parsers.items()]
    return "\n".join(SHELLS[shell](program, aliases, commands)) + "\n"


def _command(name: str, parser: argparse.ArgumentParser, purpose: str) -> Subcommand:
    actions = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    positional = [action for action in actions if not action.option_strings]
    return Subcommand(
        name,
        purpose,
        tuple(_option(action) for action in actions if action.option_strings),
        tuple(str(choice) for action in positional for choice in action.choices or ()),
        any(_takes_path(action) for action in positional),
    )


def _option(action: argparse.Action) -> Option:
    choices = tuple(map(str, action.choices or ()))
    if str(action.metavar) == "true|false":
        choices = ("true", "false")
    purpose = (action.help or "").split(" (default")[0].replace("%%", "%")
    return Option(tuple(action.option_strings), purpose, action.nargs != 0, choices, _takes_path(action))


def _takes_path(action: argparse.Action) -> bool:
    return str(action.metavar).partition(".")[0].partition("|")[0] in _PATHS


# -- bash ------------------------------------------------------------------------------------------

_BASH_WORDS = """\
_dispatch_profiler() {
    local line="${COMP_LINE:0:COMP_POINT}" current previous command options="" values=""
    local -a words
    read -ra words <<<"$line"
    [[ "$line" == *" " ]] && words+=("")
    current="${words[-1]}" previous="${words[-2]}"
    case "${words[0]##*/}" in"""
#: Filled with the program and the names of its commands.
_BASH_COMMAND = """\
        *) command="${words[1]}" ;;
    esac
    if [[ "${words[0]##*/}" == %s && ${#words[@]} -le 2 ]]; then
        COMPREPLY=($(compgen -W "%s --help --version" -- "$current"))
        return
    fi
    if [[ "$current" == --*=* ]]; then previous="${current%%%%=*}" current="${current#*=}"; fi
    case "$command $previous" in"""
_BASH_VALUES = """\
    esac
    if [[ -n "$values" ]]; then COMPREPLY=($(compgen -W "$values" -- "$current")); return; fi
    case "$command" in"""
_BASH_OPTIONS = """\
    esac
    COMPREPLY=($(compgen -W "$options" -- "$current"))
    [[ "$current" != -* ]] && COMPREPLY+=($(compgen -f -- "$current"))
    return 0
}"""


def _bash(program: str, aliases: Mapping[str, str], commands: Sequence[Subcommand]) -> Iterator[str]:
    names = " ".join(command.name for command in commands)
    yield f"# bash completion for {program}; written by `{program} completion bash`"
    yield _BASH_WORDS
    for alias, name in aliases.items():
        yield f"        {alias}) command={name} ;;"
    yield _BASH_COMMAND % (program, names)
    for command in commands:
        for option in command.options:
            pattern = "|".join(f'"{command.name} {name}"' for name in option.names)
            if option.choices:
                yield f'        {pattern}) values="{" ".join(option.choices)}" ;;'
            elif option.takes_path:
                yield f'        {pattern}) COMPREPLY=($(compgen -f -- "$current")); return ;;'
            elif option.takes_value:
                yield f"        {pattern}) return ;;"
    yield _BASH_VALUES
    for command in commands:
        words = [name for option in command.options for name in option.names]
        yield f'        {command.name}) options="{" ".join([*command.arguments, *words])}" ;;'
    yield _BASH_OPTIONS
    yield f"complete -o filenames -F _dispatch_profiler {' '.join([program, *aliases])}"


# -- zsh -------------------------------------------------------------------------------------------

_ZSH_COMMAND = """\
_dispatch_profiler() {
    local command="${words[2]}"
    case "${words[1]:t}" in"""
_ZSH_COMMANDS = """\
        *)
            if (( CURRENT == 2 )); then
                local -a commands=("""
_ZSH_OPTIONS = """\
                )
                _describe command commands
                return
            fi
            shift words; (( CURRENT-- ))
            ;;
    esac
    case "$command" in"""


def _zsh(program: str, aliases: Mapping[str, str], commands: Sequence[Subcommand]) -> Iterator[str]:
    yield f"#compdef {' '.join([program, *aliases])}"
    yield f"# zsh completion for {program}; written by `{program} completion zsh`"
    yield _ZSH_COMMAND
    for alias, name in aliases.items():
        yield f"        {alias}) command={name} ;;"
    yield _ZSH_COMMANDS
    for command in commands:
        yield f"                    {shlex.quote(f'{command.name}:{command.purpose}')}"
    yield _ZSH_OPTIONS
    for command in commands:
        yield f"        {command.name}) _arguments \\"
        for option in command.options:
            for name in option.names:
                yield f"            {shlex.quote(_zsh_spec(name, option))} \\"
        rest = " ".join(command.arguments)
        yield f"            {shlex.quote(f'*:argument:({rest})' if rest else '*:file:_files')}"
        yield "            ;;"
    yield "    esac\n}"
    yield f"compdef _dispatch_profiler {' '.join([program, *aliases])}"


def _zsh_spec(name: str, option: Option) -> str:
    """`--format=[its purpose]:value:(blocks table json)`."""
    purpose = "".join(f"\\{each}" if each in "[]:\\" else each for each in option.purpose)
    if not option.takes_value:
        return f"{name}[{purpose}]"
    values = f"({' '.join(option.choices)})" if option.choices else "_files" if option.takes_path else " "
    return f"{name}{'=' if name.startswith('--') else '+'}[{purpose}]:value:{values}"


# -- fish ------------------------------------------------------------------------------------------


def _fish(program: str, aliases: Mapping[str, str], commands: Sequence[Subcommand]) -> Iterator[str]:
    names = " ".join(command.name for command in commands)
    yield f"# fish completion for {program}; written by `{program} completion fish`"
    yield f"complete -c {program} -f"
    by_name = {command.name: command for command in commands}
    for command in commands:
        about = shlex.quote(command.purpose)
        yield f"complete -c {program} -n 'not __fish_seen_subcommand_from {names}' -a {command.name} -d {about}"
        yield from _fish_options(f"{program} -n '__fish_seen_subcommand_from {command.name}'", command)
    for alias, name in aliases.items():
        yield from _fish_options(alias, by_name[name])


def _fish_options(where: str, command: Subcommand) -> Iterator[str]:
    if command.arguments:
        yield f"complete -c {where} -a '{' '.join(command.arguments)}'"
    if command.takes_path:
        yield f"complete -c {where} -F"
    for option in command.options:
        spelled = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)
        value = (
            f" -x -a '{' '.join(option.choices)}'"
            if option.choices
            else " -r -F"
            if option.takes_path
            else " -x"
        )
        yield f"complete -c {where} {spelled}{value if option.takes_value else ''} -d {shlex.quote(option.purpose)}"


#: Shell -> generator of its script.
SHELLS: Mapping[str, Callable[[str, Mapping[str, str], Sequence[Subcommand]], Iterator[str]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
