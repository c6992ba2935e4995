package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"

	"github.com/BurntSushi/toml"
	"github.com/tailscale/hujson"

	"github.com/toolmesh/toolmesh/internal/connect"
)

// mcpEntry is the entry for mesh mcp in a client's settings.
type mcpEntry struct {
	file string // of the settings
	key  string // of the object with the entries of all servers
	text string // settings with this entry only
	body string // the entry: JSON, or a table of TOML
	toml bool
}

// entryName is the name of the mesh in clients.
const entryName = "mesh"

// mcpEntry makes the entry of one client.
func (a *app) mcpEntry(client, program string, args []string) (*mcpEntry, error) {
	home := connect.Lookup(a.env, "HOME")
	if !filepath.IsAbs(home) {
		return nil, usage(nil, "HOME is no absolute path, so the settings of %s are unknown", client)
	}
	config := cmp.Or(connect.Lookup(a.env, "XDG_CONFIG_HOME"), filepath.Join(home, ".config"))
	settings := config // the folder of graphical programs
	if runtime.GOOS == "darwin" {
		settings = filepath.Join(home, "Library", "Application Support")
	}
	e := &mcpEntry{key: "mcpServers"}
	server := map[string]any{"command": program, "args": args}
	switch client {
	case "claude":
		e.file, server["type"] = filepath.Join(home, ".claude.json"), "stdio"
	case "cursor":
		e.file = filepath.Join(home, ".cursor", "mcp.json")
	case "vscode":
		e.file, e.key, server["type"] = filepath.Join(settings, "Code", "User", "mcp.json"), "servers", "stdio"
	case "zed":
		e.file, e.key, server["source"] = filepath.Join(config, "zed", "settings.json"), "context_servers", "custom"
	case "codex":
		e.file = filepath.Join(cmp.Or(connect.Lookup(a.env, "CODEX_HOME"), filepath.Join(home, ".codex")), "config.toml")
		var table bytes.Buffer
		if err := toml.NewEncoder(&table).Encode(server); err != nil {
			return nil, err
		}
		e.toml, e.body = true, "[mcp_servers."+entryName+"]\n"+table.String()
		e.text = e.body
		return e, nil
	default:
		return nil, usage(nil, "there is no client %q: it is claude, cursor, vscode, codex or zed", client)
	}
	body, err := json.MarshalIndent(server, "    ", "  ")
	if err != nil {
		return nil, err
	}
	e.body = string(body)
	e.text = fmt.Sprintf("{\n  %q: {\n    %q: %s\n  }\n}\n", e.key, entryName, e.body)
	return e, nil
}

func (a *app) printEntry(e *mcpEntry) error {
	if a.json {
		a.printJSON(map[string]any{"file": e.file, "text": e.text})
		return nil
	}
	fmt.Fprintf(a.err, "put this into %s, or run this command again with --write:\n", e.file)
	fmt.Fprint(a.out, e.text)
	return nil
}

// tomlTable matches our table up to the next one.
var tomlTable = regexp.MustCompile(`(?m)^\[mcp_servers\.` + entryName + `\][^\n]*\n?(?:[^\[\n][^\n]*\n?|\n)*`)

// within adds the entry to settings.
func (e *mcpEntry) within(before []byte) ([]byte, error) {
	if len(bytes.TrimSpace(before)) == 0 {
		return []byte(e.text), nil
	}
	if e.toml {
		text := string(before)
		if at := tomlTable.FindStringIndex(text); at != nil {
			rest := text[at[1]:]
			if rest != "" {
				rest = "\n" + rest
			}
			text = text[:at[0]] + e.body + rest
		} else {
			text = strings.TrimRight(text, "\n") + "\n\n" + e.body
		}
		var parsed map[string]any
		if _, err := toml.Decode(text, &parsed); err != nil {
			return nil, err
		}
		return []byte(text), nil
	}
	v, err := hujson.Parse(before)
	if err != nil {
		return nil, err
	}
	path := "/" + e.key
	patch := fmt.Sprintf(`[{"op":"add","path":%q,"value":%s}]`, path+"/"+entryName, e.body)
	if v.Find(path) == nil {
		patch = fmt.Sprintf(`[{"op":"add","path":%q,"value":{%q: %s}}]`, path, entryName, e.body)
	}
	if err := v.Patch([]byte(patch)); err != nil {
		return nil, err
	}
	return v.Pack(), nil
}

// writeEntry adds the entry to the client's settings if the person agrees.
func (a *app) writeEntry(ctx context.Context, e *mcpEntry, yes bool) error {
	there, err := os.Lstat(e.file)
	if err == nil && !there.Mode().IsRegular() {
		return usage(nil, "%s is a link or no plain file: put the entry into it yourself, as mesh mcp config prints it", e.file)
	}
	for dir := e.file; err != nil && errors.Is(err, os.ErrNotExist) && dir != filepath.Dir(dir); {
		dir = filepath.Dir(dir)
		there, err = os.Stat(dir)
	}
	if err != nil {
		return usage(nil, "find the client's settings: %s", err.Error())
	}
	if owner, ok := there.Sys().(*syscall.Stat_t); ok && int(owner.Uid) != os.Geteuid() {
		return usage(nil, "%s belongs to another user: run the command as that user, who could not change a file of yours", e.file)
	}
	before, err := os.ReadFile(e.file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return usage(nil, "read the client's settings: %s", err.Error())
	}
	after, err := e.within(before)
	if err != nil {
		return usage(nil, "%s cannot be read as the client's settings, and stays as it is: %s", e.file, err.Error())
	}
	if bytes.Equal(before, after) {
		a.tell(map[string]any{"file": e.file, "changed": false}, "%s has the entry", e.file)
		return nil
	}
	fmt.Fprintf(a.err, "%s:\n%s", e.file, changes(string(before), string(after)))
	if !yes && !(a.term.in && a.confirm(ctx, "Write it?")) {
		return usage(nil, "nothing was written: agree on a terminal, or give --yes")
	}
	err = os.MkdirAll(filepath.Dir(e.file), 0o700)
	if err == nil && before != nil { // a new file, readable only to those who may read the settings
		if err = os.Remove(e.file + ".bak"); err == nil || errors.Is(err, os.ErrNotExist) {
			err = os.WriteFile(e.file+".bak", before, there.Mode().Perm())
		}
	}
	if err != nil {
		return cannotWrite(err)
	}
	if err := replace(e.file, func(w io.Writer) error { _, err := w.Write(after); return err }); err != nil {
		return err
	}
	a.tell(map[string]any{"file": e.file, "changed": true}, "wrote %s; restart the client", e.file)
	return nil
}

// changes returns the lines that differ, marked with - and +.
func changes(before, after string) string {
	old, now := strings.SplitAfter(before, "\n"), strings.SplitAfter(after, "\n")
	for len(old) > 0 && len(now) > 0 && old[0] == now[0] {
		old, now = old[1:], now[1:]
	}
	for len(old) > 0 && len(now) > 0 && old[len(old)-1] == now[len(now)-1] {
		old, now = old[:len(old)-1], now[:len(now)-1]
	}
	var b strings.Builder
	for sign, lines := range [][]string{old, now} {
		for _, line := range lines {
			if line != "" {
				fmt.Fprintf(&b, "%c %s\n", "-+"[sign], strings.TrimSuffix(line, "\n"))
			}
		}
	}
	return b.String()
}
