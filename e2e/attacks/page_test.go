package attacks_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the tables into docs/security.md")

// docs/security.md shows the tables of this package.
func TestSecurityPageShowsTheTables(t *testing.T) {
	const page = "../../docs/security.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for name, table := range map[string]string{"tools": tableOfAttempts(), "clients": tableOfTrespasses(), "installs": tableOfInstalls()} {
		before, rest, begun := strings.Cut(want, "<!-- attacks: "+name+" -->\n")
		_, after, ended := strings.Cut(rest, "<!-- end -->")
		if !begun || !ended {
			t.Fatalf("the page has no place for %s", name)
		}
		want = before + "<!-- attacks: " + name + " -->\n" + table + "<!-- end -->" + after
	}
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil { //nolint:gosec // all users may read it
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("the page differs: go test ./e2e/attacks -run Page -update (-want +got):\n%s", diff)
	}
}

// lines groups the lines of a table that differ only in the attempt.
type lines struct {
	keys  []string
	tried map[string][]string
}

func (l *lines) add(key, what string) {
	if l.tried[key] == nil {
		l.keys = append(l.keys, key)
	}
	l.tried[key] = append(l.tried[key], what)
}

func tableOfAttempts() string {
	said := map[level]string{none: "always", guard: "`guard`", strict: "`strict`", offline: "`offline`", never: "not"}
	l := lines{tried: map[string][]string{}}
	stopped := 0
	for _, a := range attempts {
		if a.by != nothing {
			stopped++
		}
		l.add(fmt.Sprintf("| %s | %%s | %s | %s | %s | %s |\n", a.area, said[a.root], said[a.user], said[a.alone()], a.by.name), a.what)
	}
	text := fmt.Sprintf("%d attempts of a tool, %d of which are to fail:\n\n", len(attempts), stopped) +
		"| area | a tool tries to | an agent of root stops it from | one of a user from | without namespaces from | by |\n|---|---|---|---|---|---|\n"
	for _, key := range l.keys {
		text += fmt.Sprintf(key, strings.Join(l.tried[key], "; "))
	}
	return text
}

func tableOfInstalls() string {
	said := map[level]string{none: "always", guard: "`guard`", strict: "`strict`", offline: "`offline`", never: "not"}
	l := lines{tried: map[string][]string{}}
	for _, a := range installAttempts {
		l.add(fmt.Sprintf("| %s | %%s | %s | %s | %s | %s |\n", a.area, said[a.root], said[a.user], said[a.alone], a.by), a.what)
	}
	controls := 0
	for _, r := range recipes {
		if r.control != "" {
			controls++
		}
	}
	text := fmt.Sprintf("%d attempts of %d indexes; %d other indexes install and answer:\n\n", len(installAttempts), len(recipes)-controls, controls) +
		"| area | an index, the author of a dependency or code of either tries to | an agent of root stops it from | one of a user from | without namespaces from | by |\n|---|---|---|---|---|---|\n"
	for _, key := range l.keys {
		text += strings.Replace(key, "%s", strings.Join(l.tried[key], "; "), 1)
	}
	return text
}

func tableOfTrespasses() string {
	l, number, all := lines{tried: map[string][]string{}}, map[string]int{}, 0
	for _, one := range trespasses {
		if one.allowed {
			continue
		}
		key := fmt.Sprintf("| %s | %s | %%s | %%d | %s |\n", one.area, one.what, one.by)
		l.add(key, one.with)
		n := len(one.publish) + len(one.subscribe)
		if one.do != nil {
			n = 1
		}
		number[key] += n
		all += n
	}
	text := fmt.Sprintf("%d attempts of clients and nodes, by the protocol alone:\n\n", all) +
		"| area | trying to | with | attempts | is stopped by |\n|---|---|---|---|---|\n"
	for _, key := range l.keys {
		text += fmt.Sprintf(key, strings.Join(l.tried[key], ", "), number[key])
	}
	return text
}
