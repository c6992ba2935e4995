package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/toolmesh/toolmesh/cmd/internal/process"
	"github.com/toolmesh/toolmesh/internal/connect"
	"github.com/toolmesh/toolmesh/tool"
)

// terminal says which streams are terminals.
type terminal struct {
	in       bool // input comes from a terminal
	out, err bool
	width    int  // of stdout; 0 if it is no terminal
	redraws  int  // the width of stderr; 0 if it is no terminal, or one whose lines cannot be wiped
	plain    bool // no colours
}

func terminalOf(env []string, stdin io.Reader, stdout, stderr io.Writer) terminal {
	look := func(stream any) (is bool, width int) {
		if f, ok := stream.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			width, _, _ = term.GetSize(int(f.Fd())) // 0 with an error
			return true, width
		}
		return false, 0
	}
	var t terminal
	t.in, _ = look(stdin)
	t.out, t.width = look(stdout)
	t.err, t.redraws = look(stderr)
	dumb := connect.Lookup(env, "TERM") == "dumb"
	switch {
	case dumb:
		t.redraws = 0
	case t.err:
		t.redraws = cmp.Or(t.redraws, 80)
	}
	t.plain = dumb || connect.Lookup(env, "NO_COLOR") != ""
	return t
}

// dim and strong format text for stderr.
func (t terminal) dim(text string) string    { return t.adorn("2", text) }
func (t terminal) strong(text string) string { return t.adorn("1", text) }

func (t terminal) adorn(code, text string) string {
	if !t.err || t.plain {
		return text
	}
	return escape + "[" + code + "m" + text + escape + "[0m"
}

var (
	escape = process.Own("\x1b")
	wipe   = process.Own("\r") + escape + "[K" // empties the terminal's current line
)

// output is stdout. It remembers a failed write for the exit status: a lost result is no success. A
// reader that closes its end is no failure.
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

// tell reports the effect of a command: JSON for programs, a line for people.
func (a *app) tell(answer any, format string, args ...any) {
	if a.json {
		a.printJSON(answer)
	} else {
		fmt.Fprintf(a.err, format+"\n", args...)
	}
}

// say prints the result of a command: the answer as JSON, or the text for people.
func (a *app) say(answer, text any) {
	if a.json {
		a.printJSON(answer)
	} else {
		fmt.Fprintln(a.out, text)
	}
}

// printValue writes a tool's JSON unchanged, indented for people.
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

// table writes rows in columns. On a terminal it cuts lines at its width.
func (a *app) table(head []string, rows [][]string) {
	var buf bytes.Buffer
	w := tabwriter.NewWriter(&buf, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{head}, rows...) {
		fmt.Fprintln(w, oneLine(row, "\t"))
	}
	_ = w.Flush() // to memory, which cannot fail
	for line := range strings.Lines(buf.String()) {
		fmt.Fprintln(a.out, cut(strings.TrimRight(line, " \n"), a.term.width))
	}
}

// cellMost is the max characters of a cell, except the last in its row: a column has one width in all lines.
const cellMost = 300

// oneLine joins a row on one line: names are text from others and may contain line breaks.
func oneLine(row []string, between string) string {
	cells := make([]string, len(row))
	for i, cell := range row {
		if cells[i] = strings.Join(strings.Fields(cell), " "); i < len(row)-1 {
			cells[i] = cut(cells[i], cellMost)
		}
	}
	return strings.Join(cells, between)
}

// printAll prints a list: JSON under its key, a table for people, or none for an empty list, unless
// that is "".
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

// facts writes alternating names and values in two columns, without those that are "".
func (a *app) facts(facts ...string) { writeFacts(a.out, facts) }

func writeFacts(to io.Writer, facts []string) {
	for i := 0; i < len(facts); i += 2 {
		if facts[i+1] != "" {
			fmt.Fprintf(to, "%-9s %s\n", facts[i], strings.ReplaceAll(facts[i+1], "\n", "\n          ")) // a text from others forges no fact
		}
	}
}

// localTime formats a time for people, "-" for none.
func localTime(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return at.Local().Format(time.DateTime)
}

// cut shortens a line to width characters; 0 is no limit.
func cut(line string, width int) string {
	if width < 2 || utf8.RuneCountInString(line) <= width {
		return line
	}
	return string([]rune(line)[:width-1]) + "…"
}

// firstLine returns the part of a text that a table shows.
func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}
