package index

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
)

func pack(t testing.TB, dir string, files []string, meta map[string][]byte) ([]byte, string) {
	t.Helper()
	var buf bytes.Buffer
	digest, err := Pack(t.Context(), &buf, dir, files, meta)
	if err != nil {
		t.Fatal(err)
	}
	return buf.Bytes(), digest
}

func TestPackUnpack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, indexFiles)
	write(t, dir, map[string]string{"not/taken": "x", strings.Repeat("long/", 60) + "name": "deep"})
	files := append(indexNames(), strings.Repeat("long/", 60)+"name")
	meta := map[string][]byte{LockFile: []byte("packaging==24.1\n"), InfoFile: []byte(`{}`), "empty": nil}
	data, digest := pack(t, dir, files, meta)

	dest, own := filepath.Join(t.TempDir(), "deep", "dest"), filepath.Join(t.TempDir(), "own")
	if err := unpack(t.Context(), bytes.NewReader(data), dest, own, digest, defaultLimits); err != nil {
		t.Fatal(err)
	}
	slices.Sort(files)
	if diff := cmp.Diff(files, onDisk(t, dest)); diff != "" {
		t.Errorf("unpacked (-want +got):\n%s", diff)
	}
	kept, err := read(own)
	slices.Sort(kept.Files)
	meta["empty"] = []byte{}
	if diff := cmp.Diff(files, kept.Files) + cmp.Diff(meta, kept.Meta); diff != "" || err != nil {
		t.Errorf("the agent's own folder has %v (-want +got):\n%s", err, diff)
	}
	for name, text := range map[string]string{"pkg/data.txt": "x\r\ny\n", files[slices.IndexFunc(files, func(f string) bool { return strings.HasPrefix(f, "long/") })]: "deep"} {
		if data, err := os.ReadFile(filepath.Join(dest, name)); err != nil || string(data) != text {
			t.Errorf("%s is %q, %v, want %q", name, data, err, text)
		}
	}
	if info, err := os.Stat(filepath.Join(dest, "run.sh")); err != nil || info.Mode().Perm()&0o100 == 0 {
		t.Errorf("run.sh is %v, %v, want it executable", info, err)
	}
	if target, err := os.Readlink(filepath.Join(dest, "link")); err != nil || target != "pkg/data.txt" {
		t.Errorf("link is %q, %v", target, err)
	}
	err = unpack(t.Context(), bytes.NewReader(data), dest, own, digest, defaultLimits)
	wantFailed(t, err, reasonExists)
	if !errors.Is(err, fs.ErrExist) {
		t.Errorf("an existing folder: %v, want fs.ErrExist in the chain", err)
	}
}

func TestPackIsDeterministic(t *testing.T) {
	t.Parallel()
	one, two := t.TempDir(), t.TempDir()
	write(t, one, indexFiles)
	write(t, two, indexFiles)
	if err := os.Chtimes(filepath.Join(two, "a.py"), time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(two, "a.py"), 0o600); err != nil {
		t.Fatal(err)
	}
	names := indexNames()
	shuffled := append(append([]string{}, names[3:]...), names[:3]...)
	data1, digest1 := pack(t, one, names, nil)
	data2, digest2 := pack(t, two, shuffled, nil)
	if digest1 != digest2 || !bytes.Equal(data1, data2) {
		t.Errorf("equal trees have digests %s and %s, equal bytes: %v", digest1, digest2, bytes.Equal(data1, data2))
	}
	// Pinned: bundles are stored under their digest, by every version.
	if want := "765de283ded6605a865869bdb321f0ba60b12c71764d290615abcf7dd0758d34"; digest1 != want {
		t.Errorf("digest is %s, want %s", digest1, want)
	}
	if _, other := pack(t, one, names[1:], nil); other == digest1 {
		t.Error("another tree has the same digest")
	}
	if _, other := pack(t, one, names, map[string][]byte{LockFile: []byte("x")}); other == digest1 {
		t.Error("another lock has the same digest")
	}
	z, err := zstd.NewReader(bytes.NewReader(data1))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, z); err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != digest1 {
		t.Errorf("the archive's SHA-256 is %s, the digest %s", got, digest1)
	}
}

func TestPackRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, map[string]string{"a": "12345", "up": "-> ../x", "abs": "-> /x", "sub/x": "", ".toolmesh/x": ""})
	for name, tt := range map[string]struct {
		files  []string
		limits Limits
		reason string
	}{
		"link upwards":  {[]string{"up"}, defaultLimits, reasonUnsafe},
		"absolute link": {[]string{"abs"}, defaultLimits, reasonUnsafe},
		"folder":        {[]string{"sub"}, defaultLimits, reasonUnsafe},
		"reserved":      {[]string{".toolmesh/x"}, defaultLimits, reasonUnsafe},
		"outside":       {[]string{"../x"}, defaultLimits, reasonUnsafe},
		"missing":       {[]string{"none"}, defaultLimits, reasonFolder},
		"large":         {[]string{"a"}, Limits{Bytes: 4, Files: 10}, reasonTooLarge},
		"many":          {[]string{"a", "sub/x"}, Limits{Bytes: 100, Files: 1}, reasonTooLarge},
	} {
		_, err := writeTar(t.Context(), io.Discard, dir, tt.files, nil, tt.limits)
		t.Log(name)
		wantFailed(t, err, tt.reason)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Pack(ctx, io.Discard, dir, []string{"a"}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// archive makes a bundle of arbitrary entries, and its true digest.
func archive(t testing.TB, entries ...any) (data []byte, digest string) {
	t.Helper()
	var raw bytes.Buffer
	w := tar.NewWriter(&raw)
	for i := 0; i < len(entries); i += 2 {
		h := entries[i].(*tar.Header)
		text := entries[i+1].(string)
		if h.Size == 0 {
			h.Size = int64(len(text))
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return compress(t, raw.Bytes()), sum(raw.Bytes())
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}

func compress(t testing.TB, data []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	z, err := zstd.NewWriter(&buf)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func regular(name string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}
}

func symlink(name, target string) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}
}

func TestUnpackHostile(t *testing.T) {
	t.Parallel()
	special := func(flag byte) *tar.Header {
		return &tar.Header{Typeflag: flag, Name: "x", Linkname: "y", Mode: 0o644}
	}
	for name, tt := range map[string]struct {
		entries []any
		reason  string
	}{
		"parent":              {[]any{regular("../x"), "x"}, reasonUnsafe},
		"parent inside":       {[]any{regular("a/../../x"), "x"}, reasonUnsafe},
		"absolute":            {[]any{regular("/tmp/x"), "x"}, reasonUnsafe},
		"dot":                 {[]any{regular("./x"), "x"}, reasonUnsafe},
		"double slash":        {[]any{regular("a//x"), "x"}, reasonUnsafe},
		"backslash":           {[]any{regular(`..\x`), "x"}, reasonUnsafe},
		"git folder":          {[]any{regular(".GIT/hooks/post-checkout"), "x"}, reasonUnsafe},
		"control character":   {[]any{regular("a\nb"), "x"}, reasonUnsafe},
		"not UTF-8":           {[]any{regular("a\xff"), "x"}, reasonUnsafe},
		"long part":           {[]any{regular(strings.Repeat("x", 256)), "x"}, reasonUnsafe},
		"absolute link":       {[]any{symlink("l", "/etc"), ""}, reasonUnsafe},
		"link upwards":        {[]any{symlink("a/l", "../../x"), ""}, reasonUnsafe},
		"link through a link": {[]any{symlink("k", "."), "", symlink("m", "k/k/../../../x"), ""}, reasonUnsafe},
		"file through a link": {[]any{symlink("a", "b"), "", regular("a/x"), "x"}, reasonBundle},
		"link over a file":    {[]any{regular("a"), "x", symlink("a", "b"), ""}, reasonBundle},
		"same file twice":     {[]any{regular("a"), "x", regular("a"), "y"}, reasonBundle},
		"file as folder":      {[]any{regular("a"), "x", regular("a/b"), "y"}, reasonBundle},
		"set-uid":             {[]any{&tar.Header{Typeflag: tar.TypeReg, Name: "a", Mode: 0o4755}, "x"}, reasonUnsafe},
		"hard link":           {[]any{special(tar.TypeLink), ""}, reasonUnsafe},
		"character device":    {[]any{special(tar.TypeChar), ""}, reasonUnsafe},
		"block device":        {[]any{special(tar.TypeBlock), ""}, reasonUnsafe},
		"fifo":                {[]any{special(tar.TypeFifo), ""}, reasonUnsafe},
		"folder":              {[]any{special(tar.TypeDir), ""}, reasonUnsafe},
		"link as lock":        {[]any{symlink(".toolmesh/lock.txt", "../x"), ""}, reasonUnsafe},
		"deep reserved":       {[]any{regular(".toolmesh/manifest/tools.toml"), "x"}, reasonUnsafe},
		"reserved as a file":  {[]any{regular(".toolmesh"), "x"}, reasonUnsafe},
		"too large":           {[]any{regular("a"), strings.Repeat("x", 3000), regular("b"), strings.Repeat("x", 3000)}, reasonTooLarge},
		"too many":            {[]any{regular("a"), "", regular("b"), "", regular("c"), "", regular("d"), "", regular("e"), ""}, reasonTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, digest := archive(t, tt.entries...)
			wantRefused(t, data, digest, tt.reason)
		})
	}
}

// wantRefused unpacks into a folder of its own and checks that nothing is left
// in it or next to it.
func wantRefused(t *testing.T, data []byte, digest, reason string) {
	t.Helper()
	outer := t.TempDir()
	parent := filepath.Join(outer, "in")
	err := unpack(t.Context(), bytes.NewReader(data), filepath.Join(parent, "dest"), filepath.Join(parent, "own"), digest, Limits{Bytes: 5000, Files: 4})
	wantFailed(t, err, reason)
	if left := onDisk(t, outer); len(left) > 0 {
		t.Errorf("a refused bundle leaves %q", left)
	}
	if entries, err := os.ReadDir(parent); err == nil && len(entries) > 0 {
		t.Errorf("a refused bundle leaves %v", entries)
	}
}

func TestUnpackDamaged(t *testing.T) {
	t.Parallel()
	data, digest := archive(t, regular("a"), "hello")
	for name, tt := range map[string]struct {
		data   []byte
		digest string
		reason string
	}{
		"wrong digest": {data, sum([]byte("x")), reasonBundle},
		"no digest":    {data, "", reasonBundle},
		"cut":          {data[:len(data)/2], digest, reasonBundle},
		"not zstd":     {[]byte("hello"), digest, reasonBundle},
		"empty":        {nil, digest, reasonBundle},
		"not tar":      {compress(t, []byte(strings.Repeat("x", 1024))), digest, reasonBundle},
		"more after":   {append(bytes.Clone(data), compress(t, []byte("x"))...), digest, reasonBundle},
		"bomb":         {compress(t, make([]byte, 64<<20)), digest, reasonTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wantRefused(t, tt.data, tt.digest, tt.reason)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := unpack(ctx, bytes.NewReader(data), filepath.Join(t.TempDir(), "x"), filepath.Join(t.TempDir(), "own"), digest, defaultLimits); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestUnpackTogether: of several that unpack one bundle at once, one makes the
// folder and the others say that it exists.
func TestUnpackTogether(t *testing.T) {
	t.Parallel()
	data, digest := archive(t, regular("a"), "hello")
	dest, own := filepath.Join(t.TempDir(), "dest"), filepath.Join(t.TempDir(), "own")
	results := make(chan error)
	for range 8 {
		go func() { results <- unpack(t.Context(), bytes.NewReader(data), dest, own, digest, defaultLimits) }()
	}
	made := 0
	for range 8 {
		if err := <-results; err == nil {
			made++
		} else if !errors.Is(err, fs.ErrExist) {
			t.Error(err)
		}
	}
	if made != 1 {
		t.Errorf("%d made the folder, want 1", made)
	}
}

func FuzzUnpack(f *testing.F) {
	for _, entries := range [][]any{
		{regular("a"), "x"},
		{regular("../a"), "x"},
		{symlink("l", "k"), "", regular("k"), "x"},
		{symlink("k", "."), "", symlink("m", "k/.."), ""},
	} {
		data, _ := archive(f, entries...)
		z, err := zstd.NewReader(bytes.NewReader(data))
		if err != nil {
			f.Fatal(err)
		}
		raw, err := io.ReadAll(z)
		z.Close()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		outer := t.TempDir()
		dest := filepath.Join(outer, "a", "b", "c", "dest")
		if err := unpack(t.Context(), bytes.NewReader(compress(t, raw)), dest, filepath.Join(t.TempDir(), "own"), sum(raw), Limits{Bytes: 1 << 16, Files: 50}); err != nil {
			wantFailed(t, err, fmt.Sprint(wantReason(err)))
			if left := onDisk(t, outer); len(left) > 0 {
				t.Errorf("a refused bundle leaves %q", left)
			}
			return
		}
		err := filepath.WalkDir(outer, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			if !within(dest, path) {
				t.Errorf("%s is outside of %s", path, dest)
			}
			if real, err := filepath.EvalSymlinks(path); err == nil && !within(dest, real) {
				t.Errorf("%s leads to %s", path, real)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		// An unpacked bundle can be packed again.
		if _, err := Pack(t.Context(), io.Discard, dest, onDisk(t, dest), nil); err != nil {
			t.Errorf("packing what was unpacked: %v", err)
		}
	})
}

func wantReason(err error) any {
	for _, reason := range []string{reasonBundle, reasonUnsafe, reasonTooLarge, reasonFolder} {
		if strings.Contains(fmt.Sprint(asDetails(err)), reason) {
			return reason
		}
	}
	return "one of the reasons of a refused bundle"
}

func TestCheckLink(t *testing.T) {
	t.Parallel()
	type link struct{ name, target string }
	got := map[link]string{}
	want := map[link]string{
		{"a", "b"}: "b", {"a", "./b//c/"}: "b/c", {"d/a", "../b"}: "../b", {"d/e/a", "../../b/c"}: "../../b/c", {"a", "."}: ".",
		{"a", ".."}: "", {"d/a", "../.."}: "", {"a", "b/.."}: "", {"a", "/b"}: "", {"a", ""}: "", {"a", `b\c`}: "", {"a", ".git/config"}: "",
		{"d/a", "./../b"}: "../b", {"d/a", ".././../b"}: "",
	}
	for l := range want {
		target, err := checkLink(l.name, l.target)
		if err != nil {
			target = ""
		}
		got[l] = target
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("targets (-want +got):\n%s", diff)
	}
}

func BenchmarkPack(b *testing.B) {
	dir := b.TempDir()
	var files []string
	for i := range 500 {
		name := fmt.Sprintf("pkg/m%d.py", i)
		write(b, dir, map[string]string{name: strings.Repeat("def f(x):\n    return x + 1\n", 200)})
		files = append(files, name)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Pack(b.Context(), io.Discard, dir, files, nil); err != nil {
			b.Fatal(err)
		}
	}
}
