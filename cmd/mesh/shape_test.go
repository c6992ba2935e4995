package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/toolmesh/toolmesh"
)

// commands are the words of all commands, without those of groups alone.
func commands(cmd *cobra.Command, words ...string) (all [][]string) {
	if cmd.HasParent() {
		all = append(all, words)
	}
	for _, c := range cmd.Commands() {
		all = append(all, commands(c, append(slices.Clone(words), c.Name())...)...)
	}
	return all
}

// With --json whatever fails, of any command, is one object with an error on stdout.
func TestErrorsHaveOneShape(t *testing.T) {
	t.Parallel()
	// These run until they are told to stop, where nothing is wrong with how they are called.
	runs := []string{"up", "demo", "bridge"}
	failed := make(map[string]bool)
	check := func(env []string, args ...string) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		status := execute(t.Context(), args, env, strings.NewReader(""), &stdout, &stderr)
		if status == 0 {
			return
		}
		failed[args[0]] = true
		var answer struct{ Error *toolmesh.Error }
		if err := json.Unmarshal(stdout.Bytes(), &answer); err != nil || answer.Error == nil || !answer.Error.Code.Valid() || answer.Error.Message == "" || answer.Error.Origin == "" || stderr.Len() > 0 {
			t.Errorf("mesh %s: status %d, stdout %q, stderr %q", strings.Join(args, " "), status, stdout.String(), stderr.String())
		}
	}
	all := commands((&app{}).root())
	for _, words := range all {
		home := t.TempDir()
		env := []string{"HOME=" + home, "XDG_STATE_HOME=" + filepath.Join(home, "state"), "XDG_DATA_HOME=" + filepath.Join(home, "data"), "XDG_CONFIG_HOME=" + filepath.Join(home, "config")}
		check(env, append(slices.Clone(words), "--json", "--no-such-flag")...)
		check(env, append(slices.Clone(words), "--no-such-flag", "--json=true")...)
		if slices.Contains(runs, words[0]) {
			check(env, append(slices.Clone(words), "x", "--json")...)
			continue
		}
		for n := range 4 {
			args := append(slices.Clone(words), slices.Repeat([]string{"x"}, n)...)
			check(env, append(args, "--json", "--server=nats://127.0.0.1:1")...) // no server there
			check(append(env, "MESH_NATS_URL= :"), append(args, "--json")...)    // no address
			check(append(env, "MESH_NATS_NKEY=none"), append(args, "--json")...) // no file
		}
	}
	for _, words := range all {
		if !failed[words[0]] {
			t.Errorf("nothing of mesh %s has failed", words[0])
		}
	}
}
