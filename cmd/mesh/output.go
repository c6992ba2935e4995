package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"text/tabwriter"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/toolmesh/toolmesh/internal/connect"
	"github.com/toolmesh/toolmesh/tool"
)

// terminal says which of the outputs a person watches.
type terminal struct {
	in       bool // that input comes from one
	out, err bool
	width    int  // of stdout, 0 where it is no terminal
	plain    bool // no colours
}

func terminalOf(env []string, stdin io.Reader, stdout, stderr io.Writer) terminal {
	var t terminal
	if f, ok := stdin.(*os.File); ok {
		t.in = term.IsTerminal(int(f.Fd()))
	}
	if f, ok := stdout.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		t.out = true
		if w, _, err := term.GetSize(int(f.Fd())); err == nil {
			t.width = w
		}
	}
	if f, ok := stderr.(*os.File); ok {
		t.err = term.IsTerminal(int(f.Fd()))
	}
	t.plain = connect.Lookup(env, "NO_COLOR") != "" || connect.Lookup(env, "TERM") == "dumb"
	return t
}

// dim and strong adorn text for stderr.
func (t terminal) dim(text string) string    { return t.adorn("2", text) }
func (t terminal) strong(text string) string { return t.adorn("1", text) }

func (t terminal) adorn(code, text string) string {
	if !t.err || t.plain {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// wipe empties the terminal's current line.
const wipe = "\r\x1b[K"

// sequences are all that this program has a terminal do.
var sequences = []string{"\x1b[1m", "\x1b[2m", "\x1b[0m", wipe}

// output is stdout. It remembers that a write failed, for the exit status to say
// so: a lost result is no success. A reader that has closed its end
// has all that it wants.
type output struct {
	to   io.Writer
	lost error
}

func (o *output) Write(p []byte) (int, error) {
	n, err := o.to.Write(p)
	if err != nil && o.lost == nil && !errors.Is(err, syscall.EPIPE) {
		o.lost = err
	}
	return n, err
}

func (a *app) printJSON(v any) {
	data, err := tool.MarshalPlain(v)
	if err != nil {
		a.out.lost = err
		return
	}
	_, _ = a.out.Write(append(data, '\n'))
}

// tell says what a command has done: a program by JSON, a person in a line.
func (a *app) tell(answer any, format string, args ...any) {
	if a.json {
		a.printJSON(answer)
	} else {
		fmt.Fprintf(a.err, format+"\n", args...)
	}
}

// say prints what a command is called for: the answer for a program, the text for a person.
func (a *app) say(answer, text any) {
	if a.json {
		a.printJSON(answer)
	} else {
		fmt.Fprintln(a.out, text)
	}
}

// printValue writes a tool's JSON as it came; indented where a person reads it.
func (a *app) printValue(value json.RawMessage) {
	value = orNull(value)
	var buf bytes.Buffer
	if !a.term.out || json.Indent(&buf, value, "", "  ") != nil {
		buf.Reset()
		if json.Compact(&buf, value) != nil {
			buf.Write(value)
		}
	}
	buf.WriteByte('\n')
	_, _ = a.out.Write(buf.Bytes())
}

// table writes rows in columns; on a terminal lines are cut at its width.
func (a *app) table(head []string, rows [][]string) {
	var buf bytes.Buffer
	w := tabwriter.NewWriter(&buf, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		fmt.Fprintln(w, oneLine(row, "\t"))
	}
	_ = w.Flush() // to memory
	for line := range strings.Lines(buf.String()) {
		fmt.Fprintln(a.out, cut(strings.TrimRight(line, " \n"), a.term.width))
	}
}

// oneLine is a row on one line: names are other people's text, and may have breaks of lines.
func oneLine(row []string, between string) string {
	cells := make([]string, len(row))
	for i, cell := range row {
		cells[i] = strings.Join(strings.Fields(cell), " ")
	}
	return strings.Join(cells, between)
}

// printAll prints a list: JSON under its key, a table for a person, and none, if it says
// something, of an empty one.
func printAll[T any](a *app, key string, all []T, none string, columns []string, row func(T) []string) {
	switch {
	case a.json:
		a.printJSON(map[string]any{key: append([]T{}, all...)})
	case len(all) == 0 && none != "":
		fmt.Fprintln(a.err, none)
	default:
		rows := make([][]string, len(all))
		for i, x := range all {
			rows[i] = row(x)
		}
		a.table(columns, rows)
	}
}

// facts writes names and values, in turn, in two columns.
func (a *app) facts(facts ...string) { writeFacts(a.out, facts) }

func writeFacts(to io.Writer, facts []string) {
	for i := 0; i < len(facts); i += 2 {
		fmt.Fprintf(to, "%-9s %s\n", facts[i], facts[i+1])
	}
}

// cut shortens a line to width characters; 0 is no limit.
func cut(line string, width int) string {
	if width < 2 || utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:width-1]) + "…"
}

// firstLine is what a table shows of a text.
func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}
