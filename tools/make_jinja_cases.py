#!/usr/bin/env python3
"""Records tests/jinja/cases.jsonl: templates of our own, and what Jinja2 makes of them in the environment that
Hugging Face transformers builds for chat templates. Needs PyPI's jinja2; run in the repository's root."""
import datetime
import json

import jinja2
import jinja2.ext
import jinja2.sandbox

NOW = "2026-11-15T09:05:03"


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(line)

    def _support(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(form):
        return datetime.datetime.fromisoformat(NOW).strftime(form)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


VARIABLES = {
    "s": "Hello World", "t": "  two  words \n", "u": "Grüße 你好 🙂", "e": "", "n": 7, "z": 0, "f": 2.5, "b": True, "no": None,
    "l": [3, 1, 2], "w": ["b", "A", "c"], "d": {"b": 1, "a": "x", "items": [1, 2], "n": {"k": [True, None, 1.5]}},
    "m": [{"role": "user", "content": "q", "n": 2}, {"role": "assistant", "content": "a", "n": 1, "x": {"y": 5}},
          {"role": "user", "content": "r", "n": 3}],
    "html": "<b>\"x\" & 'y'</b>",
}

EXPRESSIONS = r"""
1 + 2 * 3
7 // 2 ~ ' ' ~ -7 // 2 ~ ' ' ~ 7 % 3 ~ ' ' ~ -7 % 3 ~ ' ' ~ 7 / 2
2 ** 3 ** 2
2 ** -1
-2 ** 2
1.5 + 1
1e3 ~ ' ' ~ 1e16 ~ ' ' ~ 1e-5 ~ ' ' ~ 0.1 ~ ' ' ~ 100.0
0x10 + 0b11 + 0o7 + 1_000
true + 1
'a' * 3 ~ [1, 2] * 2
[1] + [2, 3]
(1, 2) + (3,)
'a' + 1
1 + 'a'
[1] + 'a'
none + 1
s - 1
1 / 0
1 // 0
1 % 0
1.0 / 0
n > 3 and 'yes' or 'no'
not n
not not b
n > 3 > 2
1 < 2 < 3 < 3
1 == 1.0
'a' < 'b'
'a' < 1
[1, 2] < [1, 3]
[1, 2] == [1, 2]
{'a': 1} == {'a': 1}
none == none
1 in l
'ell' in s
'k' in d
'a' in d
9 not in l
1 in s
x in s
1 in no
[1] in d
s if n else e
s if z
(s if z) is defined
(x if z else 'q') | upper
x
x.y
x['y']
x + 'a'
'a' + x
x ~ 'a'
d.a ~ d['a']
d['items']
d.zzz
d['zzz']
d.zzz.y
d.n.k[0]
d.n.k[-1]
l[5]
l[5].x
l['x']
s[0] ~ s[-1] ~ s[100]
u[0] ~ u[6] ~ u[-1]
s[1:3] ~ s[:-1] ~ s[::-1] ~ s[::2] ~ s[8:2:-2]
u[::-1]
u[5:8]
l[1:] ~ l[:1] ~ l[::-1] ~ l[-2:] ~ l[5:]
l[::0]
l['a':]
no.x
no[0]
no.x.y
n.x
n()
d()
s.upper() ~ s.lower() ~ s.title() ~ s.swapcase() ~ s.capitalize()
u.upper() ~ u.lower()
t.strip() ~ '|' ~ t.lstrip() ~ '|' ~ t.rstrip() ~ '|'
'xxaxx'.strip('x') ~ 'xyaxy'.lstrip('xy') ~ 'axy'.rstrip('yx')
' a '.strip(none)
' a '.strip(1)
s.split() ~ s.split('o') ~ s.split('o', 1) ~ s.rsplit('o', 1) ~ t.split()
'a,b,,c'.split(',') ~ ''.split(',') ~ ''.split() ~ ' a  b '.split(' ')
' a  b c '.split(none, 1) ~ ' a  b c '.rsplit(none, 1)
'a'.split('')
s.partition(' ') ~ s.rpartition('o') ~ s.partition('q')
s.replace('o', '0') ~ s.replace('o', '0', 1) ~ 'ab'.replace('', '-')
s.startswith('He') ~ s.endswith(('x', 'ld')) ~ s.startswith('llo', 2) ~ s.startswith(1)
s.find('o') ~ s.rfind('o') ~ s.find('q') ~ u.find('好') ~ s.index('W') ~ s.count('o')
s.index('q')
', '.join(w) ~ '-'.join('abc')
', '.join(l)
'a\nb\r\nc\n'.splitlines() ~ 'a\nb'.splitlines(true)
s.center(20, '*') ~ s.ljust(15, '.') ~ s.rjust(15) ~ 'ab'.center(5) ~ '42'.zfill(5) ~ '-42'.zfill(5)
'abc'.isalpha() ~ 'ab1'.isalnum() ~ '12'.isdigit() ~ ' '.isspace() ~ 'Ab'.istitle() ~ 'ab'.islower() ~ 'AB'.isupper() ~ ''.isalpha()
'prefix-x'.removeprefix('prefix-') ~ 'x.txt'.removesuffix('.txt')
'a\tb'.expandtabs(4)
'{} {1} {x}'.format(1, 2, x=3)
'{} {}'.format(1, 'b')
'{0[a]} {1}'.format(d, s)
'{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}|{:,}'.format('a', 'b', 'c', 42, 3.14159, 1234567)
'%s-%d-%.2f-%5s|%-5s|%05d' % ('a', 3, 2.5, 'x', 'y', 42)
'%(a)s' % d
'%s' % 'x'
'%s %s' % 'x'
'%r' % 'it'
'%%'  % ()
'%s and %s' | format('a', 'b')
l.count(1) ~ l.index(2)
l.index(9)
l.append(4)
d.update({})
d.pop('a')
s.__class__
s.__class__.x
d.get('a') ~ d.get('q') ~ d.get('q', 5)
d.keys() | list ~ d.values() | list
d.items() | list
d.keys()
d.values()
d.n.items()
d.keys() | length ~ d.keys() | first ~ d.keys() | last ~ ('a' in d.keys())
d.keys()[0] is defined
d.keys()[:1]
d.keys() + ['c']
d.keys() | tojson
d.items() is sequence or d.items() is not iterable
d.keys() == d.keys()
range(3) | list ~ range(1, 10, 3) | list ~ range(3, 0, -1) | list
range(1000000)
range(1, 2, 0)
dict(a=1, b=2) ~ dict([('x', 1)])
s | upper | lower | title | capitalize
'it\'s a test-case (of) things' | title
t | trim ~ '|' ~ 'xax' | trim('x')
s | replace('o', '0') ~ s | replace('o', '0', 1)
l | length ~ s | length ~ u | length ~ d | count ~ x | length
n | length
no | length
l | first ~ l | last ~ e | first ~ '[' ~ [] | first ~ ']'
([] | first).x
l | sort ~ w | sort ~ w | sort(case_sensitive=true) ~ l | sort(reverse=true)
m | sort(attribute='n') | map(attribute='content') | join(',')
[1, 'a'] | sort
w | join('-') ~ l | join ~ m | join(',', attribute='role')
l | sum ~ m | sum(attribute='n') ~ l | min ~ l | max ~ w | max ~ [] | min
l | reverse | list ~ s | reverse
w | map('upper') | list ~ w | map('replace', 'b', 'x') | join
m | map(attribute='x.y', default='?') | join(',')
m | map(attribute='zz') | list
w | map('nofilter') | list
m | selectattr('role', 'equalto', 'user') | map(attribute='content') | list
m | selectattr('role', '==', 'user') | list | length
m | rejectattr('role', 'in', ['user']) | map(attribute='n') | list
m | selectattr('x') | list | length ~ m | selectattr('x', 'defined') | list | length
l | select('odd') | list ~ l | reject('odd') | list ~ [0, 1, ''] | select | list
l | select('greaterthan', 1) | list
m | groupby('role') | list | length
[1, 2, 1, 3] | unique | list ~ ['a', 'A'] | unique | list
[1, 2, 3, 4, 5] | batch(2) | list ~ [1, 2, 3] | batch(2, 'x') | list
[1, 2, 3, 4, 5] | slice(2) | list ~ [1, 2, 3] | slice(2, 'x') | list
d | dictsort | list
{'b': 1, 'A': 2} | dictsort ~ {'b': 1, 'A': 2} | dictsort(by='value', reverse=true)
d | items | list | length ~ x | items | list
l | items | list
x | default('q') ~ e | default('q') ~ e | default('q', true) ~ no | default('q') ~ no | d('q', boolean=true)
'3' | int ~ '3.7' | int ~ 'x' | int ~ 'x' | int(5) ~ 3.9 | int ~ 'ff' | int(0, 16) ~ '1.5' | float ~ 'q' | float
-3 | abs ~ (-3) | abs ~ 2.567 | round(2) ~ 2.5 | round ~ 3.5 | round ~ 2.1 | round(0, 'ceil') ~ 5 | round ~ 2.19 | round(1, 'floor')
'a\nb\n\nc' | indent ~ '|' ~ 'a\nb' | indent(2, true) ~ '|' ~ 'a\n\nb' | indent(2, blank=true) ~ 'a\nb' | indent('>>')
'foo bar baz qux' | truncate(9) ~ 'foo bar baz qux' | truncate(9, true) ~ 'foo bar' | truncate(5) ~ 'foo bar baz' | truncate(9, leeway=0)
'a b, c' | wordcount ~ 'a/b c&ü' | urlencode
html | e ~ html | safe
html | escape | upper
'<' + (html | safe) + '>'
(html | e) ~ '<'
no | string ~ b | string ~ d | string
d | tojson
d | tojson(indent=2)
d | tojson(indent=0)
d | tojson(sort_keys=true, separators=(',', ':'))
u | tojson ~ u | tojson(ensure_ascii=true)
[1.0, 1e20, 1e-7, 0.1, none, true, "a\"\\\n\t<b>/"] | tojson
{1: 'a', none: 'b', true: 'c'} | tojson
x | tojson
[x] | tojson
(1, 2) | tojson
[] | tojson ~ {} | tojson ~ [[], {}] | tojson(indent=2)
s is string ~ n is number ~ n is integer ~ f is float ~ b is boolean ~ b is number ~ b is integer ~ no is none
d is mapping ~ l is mapping ~ l is sequence ~ s is sequence ~ d is iterable ~ n is iterable ~ x is iterable ~ x is sequence
x is defined ~ s is defined ~ d.q is undefined ~ x is not defined
n is odd ~ n is even ~ n is divisibleby 7 ~ n is divisibleby(2)
'ab' is lower ~ 'AB' is upper ~ b is true ~ b is false ~ z is false
n is eq 7 ~ n is ne 7 ~ n is gt 5 ~ n is lt 5 ~ n is ge 7 ~ n is le 7 ~ n is in l ~ 1 is in l
none is sameas none ~ 1 is sameas 1 ~ range is callable ~ 'upper' is filter ~ 'odd' is test
n is nosuchtest
s is string and n is number or x
not s is string
s is string is number
-1 | abs
d.b + 1 | string ~ 'x'
'a' 'b' "c"
'\n\t\\\'\"\x41\u00e9\U0001F600\101\q'
'it\'s' ~ ["it's", 'q"', 'a\nb', 'é', '\x00\x7f\u200b']
[1, 'a', none, true, 1.5, (1,), (1, 2), (), {}, {'a': 'b'}, [x]]
(1, 2)
1, 2
(1)
()
{'a': 1, 'b': [1, 2,], }
namespace(a=1).a
namespace(a=1).b
[namespace(a=1)] | length
strftime_now('%d %b %Y') ~ strftime_now('%Y-%m-%d %H:%M:%S %A %j')
raise_exception('stop here')
raise_exception('a ' + s + ' b')
cycler('a', 'b').next()
upper
l | nofilter
foo(1)
s.nomethod()
[1, 2, 3][1]
{'a': {'b': 2}}['a'].b
{'a': 1}.a
'abc'[1]
l.0
'x' if s == 'Hello World' else 'y' if n else 'z'
(n, s)[0]
d.n['k'][2]
range(10)[2:5] | list
m[0].role + ':' + m[0]['content']
m | length - 1
(m | last).role
m[-1].content.upper()
'%s' % n ~ '%s' % no ~ '%s' % b
n ~ f ~ b ~ no
n == '7'
'5' == 5
l == (3, 1, 2)
u.title() ~ 'ß'.upper() ~ 'ÀÉ'.lower()
'a' ~ 1 + 2
loop
1 if true else x.y
x.y if false else 1
false and x.y
true or x.y
('a', 'b') | join
s.split(' ')[1].upper()[0]
'a-b'.split('-')[-1]
no is defined
'' is defined
s | attr('upper') is callable
d | attr('a')
'abc' | list
d | list
9223372036854775807 + 0
{} | tojson(indent=4)
'a' in 'abc' == true
2 in [1, 2] and 3 not in [1, 2]
f // 1 ~ f % 1 ~ -f // 1
1.0 ~ 3 * 1.0 ~ 10 / 5
'x' * 0 ~ 'x' * -1
"{{ not a tag }}"
'a%}b'
no | selectattr('role', 'equalto', 'user') | list | length ~ z | rejectattr('x') | list ~ no | select | list ~ e | map('upper') | list
no | select('nosuchtest') | list
[] | selectattr('x', 'nosuchtest') | list
(l | reverse) | list ~ (l | map('string') | reverse | join)
(l | map('string')) | last
l | map('string') | first ~ 2 in (l | map('int'))
x | int
x | float
no.x | int
no | int ~ no | float ~ [] | int(4)
no[1:]
n[:2]
d[1:]
x[1:]
x | indent
n | indent
n | truncate(3)
x is callable ~ n is callable
m | sort(attribute='role,n') | map(attribute='n') | list ~ m | sort(attribute='n,role', reverse=true) | map(attribute='n') | list
m | sort(attribute='zz') | map(attribute='n') | list
m | sort(attribute='x') | list
m | groupby('zz', default='none') | list | length
'%s' % [1, 2] ~ 'a' % [1] ~ 'a' % x
x | nofilter if z else 1
1 if n else x | nofilter
x | nofilter if n else 1
1 if n is nosuchtest else 2
[x | nofilter if z]
(x | nofilter) ~ (1 if n)
'ŉ ǆ ﬁx ß ΐ ᾳ'.upper() ~ 'ßa ﬁx ŉa ᾳx ᾲ'.title() ~ 'ŉx'.capitalize() ~ 'İı'.lower() ~ 'ΑΣ Σ ΑΣ.Α'.lower() ~ 'ẞß'.casefold() ~ 'ⅷⅧß'.swapcase()
'ⅷ'.islower() ~ 'ª'.isupper() ~ 'ΟΔΟΣ οδος' | title
'a_1'.isidentifier() ~ '1a'.isidentifier() ~ ''.isidentifier() ~ 'é'.isidentifier() ~ 'a b'.isidentifier()
'a'.ljust(5, 'xy')
'a'.center(5, '')
[s | e, html | safe, {'k': 'x' | e}]
'{0.a}|{0[a]}'.format(s, 1)
'{0.a}'.format(d)
'{:>5}'.format(none)
'{:d}'.format('x')
'{:+}'.format('x')
'{}'.format(none) ~ '{:05}'.format('ab') ~ '{:5}|{:d}'.format(true, true) ~ '{!s:>6}'.format(none) ~ '{:,}'.format(1234.5)
'%c%c' % (65, 'é')
'%c' % 'ab'
range(3) ~ range(5, 0, -2) ~ range(10)[2:8:3] ~ range(4)[1]
[range(2)]
range(2) * 2
range(2) + [1]
[1] + range(2)
range(3) | tojson
range(3) == range(0, 3) ~ ' ' ~ (range(3) == [0, 1, 2]) ~ (range(3) is sequence) ~ range(3).index(2)
(1, 2).copy() is defined
(1, 2).copy()
[1, 2, 3, 4] | slice(2, 'x') | list ~ [1, 2, 3] | slice(5, 'x') | list
m | unique | list
d | urlencode ~ [('a b', '/é'), ('c', 1)] | urlencode ~ 'a b/c' | urlencode
l | urlencode
dict.fromkeys(l) ~ dict.fromkeys('ab', 1)
x | truncate
[none, none] | sort ~ [x, x] | sort | length
5.0 // 0.1 ~ ' ' ~ -7.5 // 2 ~ ' ' ~ 7.5 // -2 ~ ' ' ~ 1e300 // 0.7
[1, 'a'] | map('abs') | first
m | map(attribute='x.y') | first is defined
[1, 'a'] | map('abs') | list
(l | map('nofilter')) is iterable
l | selectattr('a.b', 'gt', 1) | list
(l | map('upper') | map('nofilter')) is defined
[3, 'a'] | select('gt', 1) | first
[3, 'a'] | select('gt', 1) | list
""".strip("\n").split("\n")

TEMPLATES = [
    "", "\n", "a\n", "a\n\n", "a\r\nb\rc\r\n", "  {{ n }}  \n  x", "{{- n -}}", "a {{- n -}} b", "a {%- if n %} b {%- endif %} c",
    "{% if n %}\n  x\n{% endif %}\ny", "  {% if n %}\n  x\n  {% endif %}\ny", "a  {% if n %}\n  x\n  {% endif %}  y\n",
    "{%+ if n %}x{% endif %}", "   {%+ if n %}\n x\n   {%+ endif +%}\n y", "{# c #}\nx", "  {# c #}  \nx", "a {#- c -#} b", "a\n  {#+ c #}\nb",
    "{#\n multi\n line\n#}\n\nx", "{% raw %}{{ x }}{% endraw %}", "a  {%- raw -%}  {% if %} {%- endraw -%}  b", "{% raw %}\n x\n{% endraw %}\ny",
    "  {% raw %}\n x\n  {% endraw %}\ny", "{{ '}}' }}{{ {'a': {'b': 1}}['a'] }}", "{{ {'a': 1}}}", "{{ '%}' }}{% if '%}' %}y{% endif %}",
    "{% for i in l %}{{ i }}{% endfor %}", "{% for i in l %}\n  {{ i }}\n{% endfor %}\n", "{% for i in l -%}\n  {{ i }}\n{%- endfor %}\n",
    "{% for i in l if i > 1 %}{{ loop.index }}/{{ loop.length }}:{{ i }} {% endfor %}", "{% for i in [] %}x{% else %}none{% endfor %}",
    "{% for i in x %}x{% else %}none{% endfor %}", "{% for i in no %}x{% endfor %}", "{% for i in n %}x{% endfor %}", "{% for c in u %}[{{ c }}]{% endfor %}",
    "{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }} {% endfor %}",
    "{% for i in l %}{{ loop.previtem }}<{{ i }}>{{ loop.nextitem }} {% endfor %}", "{% for i in l %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for i in [1, 1, 2] %}{{ loop.changed(i) }} {% endfor %}", "{% for i in l %}{{ loop.nothing }}{% endfor %}", "{% for i in l %}{{ loop.nothing.x }}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d | items %}{{ k }};{% endfor %}", "{% for k in d %}{{ k }}{% endfor %}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a + b }} {% endfor %}", "{% for a, b in l %}{% endfor %}", "{% for a, b in [(1,)] %}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}",
    "{% for (a, (b, c)) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a in 1, 2 %}{{ a }}{% endfor %}",
    "{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% for i in l %}{% for k in w %}{% if k == 'A' %}{% break %}{% endif %}{{ i }}{{ k }}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for i in [1, [2, [3]]] recursive %}{% if i is number %}{{ i }}@{{ loop.depth }} {% else %}({{ loop(i) }}){% endif %}{% endfor %}",
    "{% for i in l %}{{ loop([1]) }}{% endfor %}", "{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}",
    "{% set q = namespace(v=0) %}{% for i in l %}{% set q.v = q.v + i %}{% endfor %}{{ q.v }}", "{% set q.v = 1 %}", "{% set n.v = 1 %}",
    "{% for i in l %}{% set y = i %}{% endfor %}{{ y }}", "{% if n %}{% set y = 1 %}{% endif %}{{ y }}", "{% if z %}{% set y = 1 %}{% endif %}{{ y is defined }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set (a, b) = (1, 2) %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set a, b = 1 %}", "{% set x %}a{{ n }}b{% endset %}{{ x }}",
    "{% set x | upper | replace('A', 'z') %}a{{ n }}b{% endset %}{{ x }}", "{% set x %}{% set y = 1 %}{% endset %}{{ y is defined }}",
    "{% if z %}a{% elif no %}b{% elif n %}c{% else %}d{% endif %}", "{% if z %}a{% elif no %}b{% else %}d{% endif %}", "{% if x %}a{% endif %}b",
    "{% macro f(a, b=2) %}[{{ a }}{{ b }}]{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(b=4, a=5) }}{{ f() }}", "{% macro f(a) %}{{ a.x }}{% endmacro %}{{ f() }}",
    "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}", "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, k=3) }}",
    "{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}", "{% macro f() %}{{ y }}{% endmacro %}{% set y = 3 %}{{ f() }}", "{{ f() }}{% macro f() %}x{% endmacro %}",
    "{% macro f() %}{{ n }}{% set n = 1 %}{{ n }}{% endmacro %}{{ f() }}{{ n }}", "{% for i in l %}{% macro f() %}{{ i }}{% endmacro %}{{ f() }}{% endfor %}",
    "{% macro f() -%}\n  {{ 'x' }}\n{%- endmacro %}[{{ f() }}]", "{% macro f() %}\n  x\n{% endmacro %}[{{ f() }}]", "{% macro f(n) %}{% if n %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f.name }}", "{% macro f() %}{{ loop is defined }}{% endmacro %}{% for i in [1] %}{{ f() }}{% endfor %}",
    "{% macro f(x) %}<{{ x }}{{ caller() }}>{% endmacro %}{% call f(1) %}in{{ n }}{% endcall %}", "{% macro f() %}{{ caller(2) }}{% endmacro %}{% call(v) f() %}v={{ v }}{% endcall %}",
    "{% macro f() %}{% set q = 1 %}{% endmacro %}{{ f() }}{{ q is defined }}", "{{ f is defined }}{% if n %}{% macro f() %}y{% endmacro %}{% endif %}{{ f() }}",
    "{% filter upper %}a{{ s }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aa{% endfilter %}", "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "{% with %}{% set a = 1 %}{{ a }}{% endwith %}",
    "{% generation %}a{{ n }}{% endgeneration %}b", "{% for i in l %}{% generation %}{{ i }}{% endgeneration %}{% endfor %}", "{% generation %}\n x\n{% endgeneration %}\ny",
    "{% generation %}{% set q = 1 %}{% endgeneration %}{{ q is defined }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}", "{% set j = joiner(', ') %}{% for i in l %}{{ j() }}{{ i }}{% endfor %}",
    "{{ [1, 2, 3] | map('string') | join('+') }}", "{% for g, i in m | groupby('role') %}{{ g }}:{{ i | length }};{% endfor %}",
    "{%- for message in m %}\n    {%- if message['role'] == 'user' %}\n        {{- '<u>' + message['content'] }}\n    {%- else %}\n        {{- '<a>' + message.content + '</s>' }}\n    {%- endif %}\n{%- endfor %}",
    "{% for message in m %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "{% for i in l %}{% if loop.first %}first{% endif %} {{- i }}{% if not loop.last %}, {% endif %}{% endfor %}",
    "a{{ '\n' }}b", "{{ 'a' if n else 'b' }}{{ 'a' if z }}", "{{ x.y if x is defined else 'no' }}", "{% if m[0].role == 'user' and m | length > 1 %}ok{% endif %}",
    "{{ (m | selectattr('role', 'eq', 'user') | list)[-1].content }}", "{% set ns = namespace(found=false) %}{% for i in m if i.role == 'assistant' %}{% set ns.found = true %}{% endfor %}{{ ns.found }}",
    "{% if 'content' in m[0] and m[0].content is string %}{{ m[0].content | trim }}{% endif %}", "{{ m | tojson(indent=4) }}", "{%- set x -%}\n  a\n{%- endset -%}\n[{{ x }}]",
    "{% for i in range(3) %}{{ i }}{{ ',' if not loop.last }}{% endfor %}", "{% set a = [1] %}{% set b = a + [2] %}{{ a }}{{ b }}", "{% set l2 = l %}{{ l2 is sameas l }}",
    "\u00a0 {%- if n %} x {% endif %}", "{{ '\u3000a\u2003'.strip() }}|", "é{# ü #}è", "{% if n %}é{% endif %}", "{{\n n\n}}", "{{ n }}\n\n{{ n }}\n\n", "{%if n%}x{%endif%}{{n}}",
    "{% set _x = 1 %}{{ _x }}", "{% set été = 1 %}{{ été }}", "{{ (1, 2, 3) | last }}{{ ((1, 2), 3)[0][1] }}", "{% if not (n == 7 and not z) %}a{% else %}b{% endif %}",
    "{% for m in m %}{{ m.role }}{% endfor %}{{ m | length }}", "{% for i in l %}{{ i }}{% else %}e{% endfor %}{% for i in l if i > 9 %}x{% else %}e{% endfor %}",
    "{% set t = 'x' %}{% for i in l %}{{ t }}{% set t = i %}{{ t }}{% endfor %}{{ t }}", "{% macro f(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ f(*[1, 2]) }}{{ f(**{'a': 3, 'b': 4}) }}",
    "{{ 'a\\nb' }}", "{{ \"a\\\"b\" }}", "{{ 'x'.join(['a', 'b']) }}{{ 'x' ~ 'y' | upper }}{{ ('x' ~ 'y') | upper }}", "{{ n | string + 'a' }}", "{{ -n }}{{ +n }}{{ - n }}", "{{- -1 }}", "{{ 3 - -1 }}",
    "{% for i in l | sort(reverse=true) %}{{ i }}{% endfor %}", "{% for i in m | map(attribute='role') %}{{ loop.index }}{{ loop.last }}{{ i }}{% endfor %}", "{% for i in l | reverse %}{{ i }}{% endfor %}",
    "{{ (l | map('string')) | length }}", "{% if l | select('odd') %}y{% endif %}", "{{ l | select('odd') is iterable }}", "{{ dict(m[0], role='x').role }}", "{{ dict(m[0]).update }}",
    "{% set x = dict(a=1) %}{% set x.a = 2 %}", "{% set x = {'a': 1} %}{{ x | items | list }}", "{{ {'a': 1, 'a': 2} }}", "{{ {n: s}[7] }}", "{{ {[1]: 2} }}",
    "{% break %}", "{% if n %}", "{% for i in l %}", "{{ n", "{{ n }", "{% if %}x{% endif %}", "{% unknown %}", "{{ 1 + }}", "{{ (1 }}", "{{ [1 }}", "{% endif %}", "{# a", "{% raw %}x", "{{ 'a }}", "{{ $ }}", "{{ a b }}",
    "{% if z %}{{ x | from_json }}{% endif %}a", "{% if n %}{{ x | from_json }}{% endif %}a", "{% if n %}a{% elif x | nofilter %}b{% else %}{{ 1 | nofilter(2) }}{% endif %}",
    "{% if z %}{% for i in l %}{{ i | nofilter }}{% endfor %}{% endif %}a", "{% if z %}{% for i in l | nofilter %}{% endfor %}{% endif %}a", "{% if z %}{% macro f() %}{{ 1 | nofilter }}{% endmacro %}{% endif %}a",
    "{% if z %}{% set q %}{{ 1 | nofilter }}{% endset %}{% endif %}a", "{% if z %}{% set q = 1 | nofilter %}{% endif %}a", "{% if z is nosuchtest %}a{% endif %}", "{% for i in l if i is nosuchtest %}a{% endfor %}",
    "{% if z %}{% if n %}{{ x | nofilter }}{% endif %}{% endif %}b{{ x | nofilter }}", "{% set g = l | map('string') %}{{ g | list }}{{ g | list }}{% for i in g %}x{% else %}e{% endfor %}",
    "{% set g = m | selectattr('role', 'equalto', 'user') %}{% for i in g %}{{ i.content }}{% endfor %}{% for i in g %}{{ i.content }}{% endfor %}{% if g %}y{% endif %}", "{% set g = l | select('odd') %}{{ g | first }}{{ g | list }}",
    "{% set g = d | items %}{{ g | list | length }}{{ g | list | length }}{% set k = d.items() %}{{ k | list | length }}{{ k | list | length }}",
    "{% set %}", "{% macro %}", "{{ f(a=1, 2) }}", "{% macro f(a=1, b) %}{% endmacro %}", "{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}", "{% do x %}",
    "{% filter length %}abc{% endfilter %}", "{% raw +%}x{% endraw %}", "{% raw -%}  x  {% endraw +%}\ny",
    "{% macro f() %}x{% endmacro %}{% call f() %}y{% endcall %}", "{% macro f() %}{{ kwargs.keys() | list }}{% endmacro %}{% call f() %}y{% endcall %}",
    "{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}", "{% macro f() %}{{ caller is defined }}{% endmacro %}{{ f() }}", "{% macro f() %}{{ s.kwargs }}{% endmacro %}{{ f(q=1) }}",
    "{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{% call g() %}in{% endcall %}",
    "{% for i in l %}{% if i != 1 %}{% continue %}{% endif %}x{% break %}{% else %}none{% endfor %}", "{% for i in l %}{% continue %}{% else %}none{% endfor %}",
    "{% for i in l %}{% if loop.first %}{% continue %}{% endif %}{{ i }}{% else %}none{% endfor %}", "{% for i in l %}{{ i }}{% break %}{% else %}none{% endfor %}",
    "{% set q = namespace(on=true) %}{% for i in l if q.on %}{{ i }}{% set q.on = false %}{% endfor %}", "{% set q = namespace(on=true) %}{% for i in l if q.on %}{{ i }}{{ loop.last }}{% set q.on = false %}{% endfor %}",
    "{% set q = namespace(on=true) %}{% for i in l if q.on %}{{ i }}{{ loop.length }}{{ loop.revindex }}{% set q.on = false %}{% endfor %}", "{% for i in [2, 'a'] if i > 1 %}{{ i }}{% break %}{% endfor %}", "{% for i in [2, 'a'] if i > 1 %}{{ i }}{% endfor %}",
    "{% for i in [1, 'a'] | map('abs') %}{{ i }}{% break %}{% endfor %}", "{% for i in [1, 'a'] | map('abs') %}{{ i }}{% endfor %}", "{% set g = [1, 'a'] | map('abs') %}{% if g %}y{% endif %}", "{% set g = w | map('nofilter') %}{{ g is iterable }}",
    "{% set n %}{{ n }}{% endset %}[{{ n }}]", "{{ n }}{% set n %}{{ n }}{% endset %}[{{ n }}]", "{% for i in l %}{{ n }}{% endfor %}{% set n = 1 %}{{ n }}", "{{ n }}{% for i in l %}{{ n }}{% endfor %}{% set n = 1 %}{{ n }}",
    "{% if b %}{% for i in l %}{{ n }}{% endfor %}{% set n = 1 %}{% endif %}{{ n }}", "{% if z %}{% set n = 1 %}{% else %}{% for i in l %}{{ n }}{% endfor %}{% set n = 2 %}{% endif %}{{ n }}",
    "{% if z %}{% set n = 1 %}{% elif z %}{% set n = 2 %}{% else %}{% for i in l %}{{ n }}{% endfor %}{% set n = 3 %}{% endif %}{{ n }}", "{% with q = n %}{{ n }}{% endwith %}{% set n = 1 %}", "{% filter upper %}{{ s }}{% endfilter %}{% set s, q = 5, 6 %}",
    "{% macro f() %}{{ n }}{% endmacro %}[{{ f() }}]{% set n = 1 %}[{{ f() }}]", "{% for i in l %}{% for k in w %}{{ s }}{% endfor %}{% set s = i %}{{ s }}{% endfor %}", "{% generation %}{{ s }}{% endgeneration %}{% set s = 1 %}", "{% for n in l %}{{ n }}{% endfor %}{{ n }}",
    "{% set n = n + 1 %}{% for i in l %}{{ n }}{% endfor %}", "{% if z %}{% set q = 1 %}{% endif %}{% for i in l %}{{ q is defined }}{% endfor %}", "{% for i in l %}{{ f() if f is defined }}{% endfor %}{% macro f() %}x{% endmacro %}{{ f() }}",
]


def main():
    env = environment()
    with open("tests/jinja/variables.json", "w") as f:
        json.dump({"now": NOW, "variables": VARIABLES}, f, ensure_ascii=False, indent=1)
        f.write("\n")
    with open("tests/jinja/cases.jsonl", "w") as f:
        for source in ["{{ " + e + " }}" for e in EXPRESSIONS] + TEMPLATES:
            row = {"template": source}
            try:
                template = env.from_string(source)
                try:
                    row["text"] = template.render(**VARIABLES)
                except Exception as error:  # pylint: disable=broad-except
                    row["error"] = str(error)
            except Exception as error:  # pylint: disable=broad-except
                row["refused"] = str(error)
            f.write(json.dumps(row, ensure_ascii=False) + "\n")


main()
