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

// scan looks for canaries and tokens wherever they must not be: what the author was
// asked and told, answers and errors, logs, and all that the agent keeps.
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
			continue // it has just gone
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

// scanFolder looks into all files of a folder of an agent's. The NATS server's files have
// variables of indexes, which nodes need: there tokens do not count.
func (w *workplace) scanFolder(dir string) {
	w.t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil //nolint:nilerr // it has just gone
		case entry.IsDir() && path == filepath.Join(w.data, "targets"):
			return filepath.SkipDir
		case !entry.Type().IsRegular():
			return nil
		}
		data, err := os.ReadFile(path) //nolint:gosec // to be looked into
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

// find notes canaries in a text for the cases that they are of.
func (w *workplace) find(where string, text []byte, declared bool) {
	low := bytes.ToLower(text)
	for _, kind := range []string{"canary", "secrettoken"} {
		if declared && kind == "secrettoken" || !bytes.Contains(low, []byte(kind)) { // the expression takes long
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

// take reads the reports that probes left.
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

// said are the reports of a case from a place; all of them for no place.
func (c *attempted) said(where string) (found []report) {
	for _, one := range c.workplace.reports {
		if one.Case == c.id && (where == "" || one.Where == where) {
			found = append(found, one)
		}
	}
	return found
}

// judge wants of each row what it says.
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
			// In none what others altered before the restart is the agent's own to alter.
			want, answer := c.control+" "+c.control, c.answer
			if w.asked == none {
				answer = strings.Replace(answer, ` "altered"`, " "+c.control, 1)
			}
			if !c.ok || answer != want {
				t.Errorf("it does not install and answer: ok %t, answers %q, want %q\n%s", c.ok, c.answer, want, head(c.out.String()))
			}
		})
	}
}

// head is how a text begins, without steps of installs.
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
