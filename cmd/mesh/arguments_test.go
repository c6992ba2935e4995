package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const argumentsSchema = `{
  "type": "object",
  "properties": {
    "text": {"type": "string"}, "count": {"type": "integer"}, "share": {"type": "number"}, "on": {"type": "boolean"},
    "list": {"type": "array", "items": {"type": "string"}}, "object": {"type": "object"}, "any": {},
    "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    "several": {"type": ["boolean", "integer"]},
    "level": {"enum": [1, 2, "max"]}, "fixed": {"const": true},
    "ref": {"$ref": "#/$defs/port"}, "loop": {"$ref": "#/properties/loop"},
    "all": {"allOf": [{"description": "x"}, {"type": "integer"}]}
  },
  "$defs": {"port": {"type": "integer"}},
  "additionalProperties": false
}`

func TestArguments(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "args.json")
	if err := os.WriteFile(file, []byte(` {"text": "from a file"} `), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args  []string
		stdin string
		want  string // JSON, or the error behind "!"
	}{
		"none":              {nil, "", ``},
		"object":            {[]string{`{"count":1}`}, "", `{"count":1}`},
		"object kept":       {[]string{`{"b":1.0,"a":9007199254740993}`}, "", `{"b":1.0,"a":9007199254740993}`},
		"stdin":             {[]string{"-"}, `{"text":"in"}`, `{"text":"in"}`},
		"file":              {[]string{"@" + file}, "", `{"text": "from a file"}`},
		"merged":            {[]string{`{"text":"a","count":1}`, "text=b"}, "", `{"count":1,"text":"b"}`},
		"text":              {[]string{"text=a=b c"}, "", `{"text":"a=b c"}`},
		"text like number":  {[]string{"text=5"}, "", `{"text":"5"}`},
		"text of markup":    {[]string{"text=<a>&"}, "", `{"text":"<a>&"}`},
		"empty text":        {[]string{"text="}, "", `{"text":""}`},
		"integer":           {[]string{"count=-7"}, "", `{"count":-7}`},
		"big integer":       {[]string{"count=123456789012345678901234567890"}, "", `{"count":123456789012345678901234567890}`},
		"leading zero":      {[]string{"count=007"}, "", `{"count":7}`},
		"no integer":        {[]string{"count=two"}, "", `!count=two: the tool takes the type integer there`},
		"whole fraction":    {[]string{"count=3.0"}, "", `{"count":3}`},
		"whole power":       {[]string{"count=-1.5e3"}, "", `{"count":-1500}`},
		"small power":       {[]string{"count=1e-3"}, "", `!the type integer there`},
		"huge power":        {[]string{"count=1e1000000000"}, "", `!the type integer there`},
		"union of a text":   {[]string{"either=3.0"}, "", `{"either":"3.0"}`},
		"latin 1":           {[]string{"text=\xff"}, "", `!not UTF-8`},
		"latin 1 on stdin":  {[]string{"-"}, "{\"text\":\"\xff\"}", `!stdin: not UTF-8`},
		"fraction":          {[]string{"count=1.5"}, "", `!the type integer there`},
		"number":            {[]string{"share=0.10"}, "", `{"share":0.10}`},
		"number short":      {[]string{"share=.5"}, "", `{"share":0.5}`},
		"no number":         {[]string{"share=NaN"}, "", `!the type number there`},
		"hex":               {[]string{"share=0x10"}, "", `!the type number there`},
		"boolean":           {[]string{"on=true"}, "", `{"on":true}`},
		"no boolean":        {[]string{"on=yes"}, "", `!the type boolean there`},
		"list":              {[]string{`list=["a"]`}, "", `{"list":["a"]}`},
		"no list":           {[]string{"list=a"}, "", `!the type array of string there; write list:='[…]'`},
		"object value":      {[]string{`object={"a":1}`}, "", `{"object":{"a":1}}`},
		"any is text":       {[]string{"any=5"}, "", `{"any":"5"}`},
		"unknown is text":   {[]string{"new=5"}, "", `{"new":"5"}`},
		"optional number":   {[]string{"maybe=5"}, "", `{"maybe":5}`},
		"optional null":     {[]string{"maybe=null"}, "", `{"maybe":null}`},
		"optional wrong":    {[]string{"maybe=x"}, "", `!the type integer|null there`},
		"optional text":     {[]string{"note=null"}, "", `{"note":"null"}`},
		"union number":      {[]string{"either=5"}, "", `{"either":5}`},
		"union text":        {[]string{"either=five"}, "", `{"either":"five"}`},
		"several":           {[]string{"several=false"}, "", `{"several":false}`},
		"enum number":       {[]string{"level=2"}, "", `{"level":2}`},
		"enum text":         {[]string{"level=max"}, "", `{"level":"max"}`},
		"const":             {[]string{"fixed=true"}, "", `{"fixed":true}`},
		"reference":         {[]string{"ref=80"}, "", `{"ref":80}`},
		"reference wrong":   {[]string{"ref=http"}, "", `!the type integer there`},
		"reference to self": {[]string{"loop=80"}, "", `{"loop":"80"}`},
		"allOf":             {[]string{"all=3"}, "", `{"all":3}`},
		"allOf wrong":       {[]string{"all=x"}, "", `!the type integer there`},
		"number in integer": {[]string{"share=3.0"}, "", `{"share":3.0}`},
		"spaces":            {[]string{"count= 7"}, "", `{"count":7}`},
		"spaces of a text":  {[]string{"either= 7"}, "", `{"either":" 7"}`},
		"quoted":            {[]string{`either="7"`}, "", `{"either":"\"7\""}`},
		"json":              {[]string{"count:=3", `any:={"a":[1]}`, "note:=null"}, "", `{"any":{"a":[1]},"count":3,"note":null}`},
		"json wrong":        {[]string{"count:=two"}, "", `!for text write count=two`},
		"twice":             {[]string{"count=1", "count:=2"}, "", `!given twice`},
		"word":              {[]string{"Oslo"}, "", `!is not an argument: write name=value`},
		"nameless":          {[]string{"=x"}, "", `!is not an argument`},
		"bad json":          {[]string{`{"count":`}, "", `!no JSON at byte`},
		"array":             {[]string{`[1]`}, "", `!one JSON object`},
		"object late":       {[]string{"count=1", `{"a":1}`}, "", `!is not an argument`},
		"empty stdin":       {[]string{"-"}, " \n", `!stdin: empty`},
		"no file":           {[]string{"@" + file + ".not"}, "", `!cannot be read`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, err := parseArguments(tc.args, strings.NewReader(tc.stdin))
			var got json.RawMessage
			if err == nil {
				got, err = g.merge(json.RawMessage(argumentsSchema))
			}
			if wrong, ok := strings.CutPrefix(tc.want, "!"); ok {
				var u *usageError
				if !errors.As(err, &u) || !strings.Contains(u.text, wrong) {
					t.Fatalf("error %v, want wrong usage with %q", err, wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("arguments (-want +got):\n%s", diff)
			}
		})
	}
}

// The work of typing k=v is bounded, whatever the author of a schema wrote: alternatives of
// alternatives are 4^20 types here.
func TestArgumentsOfNestedAlternatives(t *testing.T) {
	t.Parallel()
	defs := map[string]any{"d20": map[string]any{"type": "integer"}}
	for i := range 20 {
		next := map[string]any{"$ref": fmt.Sprintf("#/$defs/d%d", i+1)}
		defs[fmt.Sprintf("d%d", i)] = map[string]any{"anyOf": []any{next, next, next, next}}
	}
	schema := compact(map[string]any{"$defs": defs, "properties": map[string]any{"x": map[string]any{"$ref": "#/$defs/d0"}}})
	g, err := parseArguments([]string{"x=5"}, nil)
	if err == nil {
		_, err = g.merge(json.RawMessage(schema))
	}
	if err != nil {
		t.Error(err)
	}
}

// The type that people read is short, and soon written, whatever the author of a schema wrote.
func TestTypesOfNestedAlternativesAreShort(t *testing.T) {
	t.Parallel()
	part := newSchema(json.RawMessage(`{"$defs":{"a":{"anyOf":[` + strings.Repeat(`{"$ref":"#/$defs/a"},`, 11) + `{"type":"string"}]}},"properties":{"x":{"$ref":"#/$defs/a"}}}`)).Properties["x"]
	if text := kindOf(part); len(text) > 1000 {
		t.Errorf("the type of a parameter has %d bytes", len(text))
	}
}

// A schema that only refers to itself describes nothing: each value is text.
func TestArgumentsOfASchemaThatRefersToItself(t *testing.T) {
	t.Parallel()
	g, err := parseArguments([]string{"x=5"}, nil)
	var got json.RawMessage
	if err == nil {
		got, err = g.merge(json.RawMessage(`{"$ref":"#"}`))
	}
	if err != nil || string(got) != `{"x":"5"}` {
		t.Errorf("%s %v", got, err)
	}
}

func TestShellQuote(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{
		"call": "call", "city=Oslo": "city=Oslo", "text=a b": "text='a b'", "a b": "'a b'", "": "''",
		`x:=["1"]`: `x:='["1"]'`, "t=it's": `t='it'\''s'`, "$HOME": "'$HOME'",
	} {
		if got := shellQuote(word); got != want {
			t.Errorf("shellQuote(%q) = %s, want %s", word, got, want)
		}
	}
}
