package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestReplacedFilesKeepTheirModeAndOwner holds [replace] to what it says, as root of files of
// other users, too.
func TestReplacedFilesKeepTheirModeAndOwner(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o027))
	text := func(s string) func(io.Writer) error {
		return func(w io.Writer) error { _, err := io.WriteString(w, s); return err }
	}
	broken := errors.New("the way is broken")
	for _, one := range []struct {
		name string
		mode os.FileMode // of the existing file; 0: none
		uid  int
		link bool // it is reached by a link
		fail bool
		want os.FileMode
	}{
		{name: "new", want: 0o640},
		{name: "private", mode: 0o600, want: 0o600},
		{name: "shared", mode: 0o664, want: 0o664},
		{name: "program", mode: 0o755, want: 0o755},
		{name: "of another", mode: 0o600, uid: 12345, want: 0o600},
		{name: "by a link", mode: 0o600, link: true, want: 0o600},
		{name: "failed", mode: 0o600, fail: true, want: 0o600},
		{name: "failed anew", fail: true},
	} {
		t.Run(one.name, func(t *testing.T) {
			if one.uid != 0 && os.Geteuid() != 0 {
				t.Skip("only root has files of others")
			}
			dir := t.TempDir()
			real := filepath.Join(dir, "real")
			path := real
			if one.mode != 0 {
				err := errors.Join(os.WriteFile(real, []byte("before"), 0o600), os.Chmod(real, one.mode))
				if one.uid != 0 {
					err = errors.Join(err, os.Chown(real, one.uid, one.uid))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if one.link {
				path = filepath.Join(dir, "link")
				if err := os.Symlink("real", path); err != nil {
					t.Fatal(err)
				}
			}
			write, want := text("after"), "after"
			if one.fail {
				want = "before"
				write = func(w io.Writer) error { return errors.Join(text("half")(w), broken) }
			}
			if err := replace(path, write); one.fail != errors.Is(err, broken) {
				t.Fatalf("error %v", err)
			}
			names, _ := filepath.Glob(filepath.Join(dir, "*"))
			if one.mode == 0 && one.fail {
				if len(names) > 0 {
					t.Fatalf("left are %q", names)
				}
				return
			}
			data, err := os.ReadFile(real)
			if err != nil || string(data) != want {
				t.Fatalf("the file has %q, %v", data, err)
			}
			info, err := os.Lstat(real)
			if err != nil || info.Mode() != one.want || int(info.Sys().(*syscall.Stat_t).Uid) != max(one.uid, os.Geteuid()) {
				t.Errorf("the file is %v of %v, %v", info.Mode(), info.Sys().(*syscall.Stat_t).Uid, err)
			}
			if info, err := os.Lstat(path); one.link && (err != nil || info.Mode().Type() != fs.ModeSymlink) {
				t.Errorf("the link is %v, %v", info.Mode(), err)
			}
			if strings.Contains(strings.Join(names, " "), ".part") {
				t.Errorf("left are %q", names)
			}
		})
	}
}

func TestOutputIntoDevicesAndPipes(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	read := make(chan string, 1)
	go func() { data, _ := os.ReadFile(pipe); read <- string(data) }()
	if err := replace(pipe, func(w io.Writer) error { _, err := io.WriteString(w, "hello"); return err }); err != nil {
		t.Fatal(err)
	}
	if got := <-read; got != "hello" {
		t.Errorf("the pipe brought %q", got)
	}
	if err := replace(os.DevNull, func(w io.Writer) error { _, err := io.WriteString(w, "hello"); return err }); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(os.DevNull); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("%s is %v, %v", os.DevNull, info.Mode(), err)
	}
	nowhere := filepath.Join(dir, "nowhere")
	if err := os.Symlink("gone", nowhere); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{nowhere, dir} {
		if err := replace(path, func(io.Writer) error { return nil }); err == nil {
			t.Errorf("%s was replaced", path)
		}
	}
}
