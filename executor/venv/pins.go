package venv

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	exact     = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*===?\s*([^\s;,\\]+)`)
	separator = regexp.MustCompile(`[-_.]+`)
	hash      = regexp.MustCompile(`--hash[= ]\s*(\S+)`)
	included  = regexp.MustCompile(`^(?:-r|-c|--requirement|--constraint)[= ]?\s*(.+)$`)
)

// pinned returns the hashes that a requirements file demands, and those that it
// includes, by the package and version they stand at.
func pinned(file string) map[string][]string {
	pins := make(map[string][]string)
	readPins(file, pins, make(map[string]bool))
	return pins
}

func readPins(file string, pins map[string][]string, seen map[string]bool) {
	if seen[file] {
		return
	}
	seen[file] = true
	data, err := os.ReadFile(file) //nolint:gosec // the source's own file
	if err != nil {
		return // uv says so
	}
	for _, line := range logical(data) {
		if other := included.FindStringSubmatch(line); other != nil {
			name := strings.Trim(other[1], `"' `)
			if !filepath.IsAbs(name) {
				name = filepath.Join(filepath.Dir(file), name)
			}
			readPins(name, pins, seen)
			continue
		}
		if key := release(line); key != "" {
			for _, one := range hash.FindAllStringSubmatch(line, -1) {
				pins[key] = append(pins[key], one[1])
			}
		}
	}
}

// logical returns the lines of a requirements file, continued ones as one, without
// comments.
func logical(data []byte) []string {
	var lines []string
	text := strings.ReplaceAll(string(bytes.TrimPrefix(data, []byte("\ufeff"))), "\r\n", "\n")
	for line := range strings.SplitSeq(strings.ReplaceAll(text, "\\\n", " "), "\n") {
		if n := strings.Index(" "+line, " #"); n >= 0 {
			line = line[:n]
		}
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// release names the package and version of a requirement in one way, however it
// is written; empty unless it says exactly one version.
func release(line string) string {
	found := exact.FindStringSubmatch(line)
	if found == nil {
		return ""
	}
	version := strings.ToLower(strings.TrimPrefix(found[2], "v"))
	for strings.HasSuffix(version, ".0") {
		version = strings.TrimSuffix(version, ".0")
	}
	return strings.ToLower(separator.ReplaceAllString(found[1], "-")) + "==" + version
}

// hold writes the hashes that a requirements file demands in place of those that
// uv found in a lock. uv checks them when it installs, but when it makes the lock
// it takes what the package index says, so that a file that was changed there
// since the author wrote them would be taken too.
func hold(lock []byte, pins map[string][]string) []byte {
	if len(pins) == 0 {
		return lock
	}
	var out strings.Builder
	for _, line := range logical(lock) {
		hashes, ok := pins[release(line)]
		if !ok {
			for _, one := range hash.FindAllStringSubmatch(line, -1) {
				hashes = append(hashes, one[1])
			}
		}
		out.WriteString(strings.TrimSpace(hash.ReplaceAllString(line, "")))
		for _, one := range hashes {
			out.WriteString(" \\\n    --hash=" + one)
		}
		out.WriteString("\n")
	}
	return []byte(out.String())
}
