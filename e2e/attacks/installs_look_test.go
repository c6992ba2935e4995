package attacks_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/toolmesh/toolmesh/meshtest"
	"github.com/toolmesh/toolmesh/subjects"
)

// scan looks for canaries and tokens in requests to servers, answers, errors, logs and files of the agent.
func (w *workplace) scan() {
	w.t.Helper()
	w.scanFolder(w.data)
	asked, _ := w.author.took()
	seed := strings.ToLower(regexp.MustCompile(`\bS[A-Z0-9]{50,}`).FindString(readAll(w.t, w.admin)))
	if seed == "" {
		w.t.Fatal("the administrator's key has no seed")
	}
	for _, one := range asked {
		w.find("asked of a server: "+one, []byte(one), false)
		low := strings.ToLower(one)
		for _, c := range w.cases {
			if (strings.Contains(one, "/c/"+c.id+"/") || strings.HasPrefix(one, c.id+": ")) && (strings.Contains(low, seed) || strings.Contains(one, w.envword) || strings.Contains(one, w.author.password)) {
				c.leaks = append(c.leaks, "asked of the author's server: "+one)
			}
		}
	}
	w.mu.Lock()
	logs := slices.Clone(w.logs.Bytes())
	w.mu.Unlock()
	w.find("the agent's log", logs, false)
	for _, c := range w.cases {
		w.find("answers, errors and mesh info", c.out.Bytes(), false)
		if bytes.Contains(bytes.ToLower(c.out.Bytes()), []byte(seed)) || bytes.Contains(c.out.Bytes(), []byte(w.author.password)) || bytes.Contains(c.out.Bytes(), []byte(w.envword)) {
			c.leaks = append(c.leaks, "answers, errors and mesh info have a secret of the agent")
		}
	}
	nc := w.connect(w.t, w.admin)
	js, err := nc.JetStream()
	if err != nil {
		w.t.Fatal(err)
	}
	store, err := js.ObjectStore(subjects.ObjectBundles)
	if err != nil {
		w.t.Fatal(err)
	}
	all, err := store.List()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, one := range all {
		data, err := store.GetBytes(one.Name)
		if err != nil {
			continue // it was just removed
		}
		z, err := zstd.NewReader(bytes.NewReader(data))
		if err != nil {
			w.t.Fatal(err)
		}
		var text bytes.Buffer
		_, err = text.ReadFrom(z)
		z.Close()
		if err != nil {
			w.t.Errorf("bundle %s: %v", one.Name, err)
		}
		w.find("the bundle "+one.Name, text.Bytes(), false)
	}
}

// scanFolder looks into all files of an agent's folder. The NATS server's files have the variables of indexes,
// which nodes need: tokens there do not count.
func (w *workplace) scanFolder(dir string) {
	w.t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil //nolint:nilerr // it was just removed
		case entry.IsDir() && path == filepath.Join(w.data, "targets"):
			return filepath.SkipDir
		case !entry.Type().IsRegular():
			return nil
		}
		data, err := os.ReadFile(path) //nolint:gosec // a file of the test
		if err != nil {
			return nil //nolint:nilerr // likewise
		}
		w.find(path, data, strings.HasPrefix(path, filepath.Join(w.data, "nats")))
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// find records canaries and tokens in a text for their cases.
func (w *workplace) find(where string, text []byte, declared bool) {
	low := bytes.ToLower(text)
	for _, kind := range []string{"canary", "secrettoken"} {
		if declared && kind == "secrettoken" || !bytes.Contains(low, []byte(kind)) { // the expression is slow
			continue
		}
		for _, found := range words[kind].FindAllSubmatch(low, -1) {
			c := w.byID[string(found[1])]
			if c == nil {
				continue
			}
			line := fmt.Sprintf("%s has %s", where, found[0])
			if !slices.Contains(c.leaks, line) {
				c.leaks = append(c.leaks, line)
			}
		}
	}
}

// take reads the reports of probes.
func (w *workplace) take() {
	_, w.reports = w.author.took()
	files, _ := filepath.Glob(filepath.Join(w.drop, "*.json"))
	for _, file := range files {
		var one report
		if data, err := os.ReadFile(file); err == nil && json.Unmarshal(data, &one) == nil { //nolint:gosec // ours
			w.reports = append(w.reports, one)
		}
	}
}

// said returns the reports of a case from a place, or all for "".
func (c *attempted) said(where string) (found []report) {
	for _, one := range c.workplace.reports {
		if one.Case == c.id && (where == "" || one.Where == where) {
			found = append(found, one)
		}
	}
	return found
}

// judge compares each row with the effects of its recipe.
func (w *workplace) judge() {
	if meshtest.ShowLogs() {
		for _, one := range w.reports {
			w.t.Logf("%+v", one)
		}
	}
	of := map[*recipe]*attempted{}
	for _, c := range w.cases {
		of[c.of] = c
	}
	for _, a := range installAttempts {
		c := of[a.of]
		if c == nil {
			continue // not picked
		}
		w.t.Run(a.area+"/"+a.what, func(t *testing.T) {
			done := a.proof(c)
			if w.asked < w.from(a) {
				t.Logf("not promised here: %s", done)
				return
			}
			if done != "" {
				t.Errorf("the attempt succeeds: %s\n%s", done, head(c.out.String()))
				return
			}
			if a.of.refused && (c.code != refusedCode || c.reason != refusedReason) {
				t.Errorf("not refused as a dependency: ok %t, code %q, reason %q\n%s", c.ok, c.code, c.reason, head(c.out.String()))
			}
		})
	}
	for _, c := range w.cases {
		if c.control == "" {
			continue
		}
		w.t.Run("control/"+c.name, func(t *testing.T) {
			// In none, code of an index may alter the agent's files, the control's included.
			want, answer := c.control+" "+c.control, c.answer
			if w.asked == none {
				answer = strings.ReplaceAll(answer, `"altered"`, c.control)
			}
			if !c.ok || answer != want {
				t.Errorf("it is not installed, or gives another answer: ok %t, answers %q, want %q\n%s", c.ok, c.answer, want, head(c.out.String()))
			}
		})
	}
}

// head returns the beginning of a text, without the steps of installs.
func head(text string) string {
	var lines []string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, `{"job"`) {
			lines = append(lines, strings.TrimRight(line, "\n"))
		}
	}
	text = strings.Join(lines, "\n")
	if len(text) > 1500 {
		text = text[:1500] + "…"
	}
	return text
}
