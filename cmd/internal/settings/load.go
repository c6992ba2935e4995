package settings

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kelseyhightower/envconfig"
	"github.com/spf13/pflag"

	"github.com/toolmesh/toolmesh/internal/connect"
	"github.com/toolmesh/toolmesh/tool"
)

const prefix = "MESH_"

// Load fills spec, a pointer to [Agent], [Router] or [Mesh], with the defaults and the environment. env
// is the process's own os.Environ, as envconfig reads the process. The error names the first variable
// at fault; the others are set despite it.
func Load(env []string, spec any) (err error) {
	all := fields(reflect.ValueOf(spec).Elem())
	texts := texts(all)
	for i, f := range all {
		text, _ := texts.Field(i).Interface().(*string)
		if text == nil {
			continue
		}
		if wrong := f.read(*text); wrong != nil && err == nil {
			err = fmt.Errorf("%s is %q: %w", f.variable, *text, wrong)
		}
	}
	spec.(interface{ connection(env []string) }).connection(env)
	return err
}

// texts reads the text of each field with envconfig, into a struct of pointers: its variable's, else its default; nil without both.
// envconfig itself knows one way to read a type, and fields of one type take different values.
func texts(all []field) reflect.Value {
	as := make([]reflect.StructField, len(all))
	for i, f := range all {
		as[i] = reflect.StructField{
			Name: fmt.Sprint("F", i), Type: reflect.TypeFor[*string](), Tag: reflect.StructTag(fmt.Sprintf(`envconfig:%q default:%q`, f.variable, f.tag.Get("default"))),
		}
	}
	spec := reflect.New(reflect.StructOf(as))
	_ = envconfig.Process("", spec.Interface()) // it takes any text
	return spec.Elem()
}

// connection applies the rule of package connect for variables of two prefixes: MESH_NATS_CONTEXT
// wins over NATS_URL.
func (c *Connection) connection(env []string) {
	*c = Connection(connect.FromEnv(env))
}

// Settle merges the flags and the variables of the connection: a flag wins over the variable of the
// other kind. It refuses both flags together, and a list of servers that no client can connect to,
// with the name of its setting.
func Settle(env []string, flags *pflag.FlagSet, c *Connection) error {
	server, saved := flags.Changed("server"), flags.Changed("context")
	name := "--server"
	switch {
	case server && saved:
		return errors.New("--server and --context both say where the mesh is: give one")
	case server:
		c.Context = ""
	case saved:
		c.URL = ""
	case connect.Lookup(env, "MESH_NATS_URL") != "":
		name = "MESH_NATS_URL"
	default:
		name = "NATS_URL"
	}
	for server := range strings.SplitSeq(c.URL, ",") {
		if err := connect.CheckURL(server); err != nil {
			return fmt.Errorf("%s: %q %w", name, connect.Redact(c.URL), err)
		}
	}
	return nil
}

// Unknown returns the MESH_ variables in env that are no setting of the three binaries, sorted,
// each with a hint at the similar setting. It ignores names that Kubernetes makes for a service
// called mesh-….
func Unknown(env []string) []string {
	known := Names()
	var unknown []string
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, prefix) || slices.Contains(known, name) || serviceLink.MatchString(name) {
			continue
		}
		if near := tool.Nearest(name, known, 1); len(near) > 0 {
			name += " (did you mean " + near[0] + "?)"
		}
		unknown = append(unknown, name)
	}
	slices.Sort(unknown)
	return unknown
}

// serviceLink matches the variables that Kubernetes adds to each container for a service whose name
// begins with mesh.
var serviceLink = regexp.MustCompile(`^MESH(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT|PORT_[0-9]+_[A-Z0-9_]+)$`)

// Names returns the variables of all three binaries, sorted.
func Names() []string {
	var names []string
	for _, spec := range []any{new(Agent), new(Router), new(Mesh)} {
		for _, f := range fields(reflect.ValueOf(spec).Elem()) {
			names = append(names, f.variable)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

type field struct {
	value    reflect.Value // addressable
	tag      reflect.StructTag
	variable string
}

func fields(v reflect.Value) []field {
	var all []field
	for i := range v.NumField() {
		sf := v.Type().Field(i)
		if sf.Anonymous {
			all = append(all, fields(v.Field(i))...)
			continue
		}
		name := cmp.Or(sf.Tag.Get("env"), strings.ToUpper(strings.ReplaceAll(sf.Tag.Get("flag"), "-", "_")))
		all = append(all, field{v.Field(i), sf.Tag, prefix + name})
	}
	return all
}

// read sets the field to the value that a text means.
func (f field) read(text string) error {
	switch is := f.tag.Get("is"); {
	case f.value.Kind() == reflect.Bool:
		on, err := strconv.ParseBool(text)
		if err != nil {
			return errors.New("want true or false")
		}
		f.value.SetBool(on)
	case is == "":
		f.value.SetString(text)
	default:
		v, err := kinds[is](text)
		if err != nil {
			return err
		}
		f.value.Set(reflect.ValueOf(v))
	}
	return nil
}

// Bind makes a flag of each setting of spec, a pointer to a loaded struct of this package. Flags
// win.
func Bind(flags *pflag.FlagSet, spec any) {
	for _, f := range fields(reflect.ValueOf(spec).Elem()) {
		env := f.variable
		if further := f.tag.Get("env"); further != "" {
			env += ", " + further
		}
		flag := flags.VarPF(&value{field: f}, f.tag.Get("flag"), f.tag.Get("short"), f.tag.Get("help")+" ["+env+"]")
		flag.DefValue = f.tag.Get("default")
		if f.value.Kind() == reflect.Bool {
			flag.NoOptDefVal = "true"
		}
	}
}

// value is a field as a flag.
type value struct {
	field
	text string // that the flag was given
}

func (v *value) Type() string {
	if v.value.Kind() == reflect.Bool {
		return "bool" // takes no argument
	}
	return v.tag.Get("arg")
}

func (v *value) String() string { return v.text }

func (v *value) Set(text string) error {
	if text == "" && v.tag.Get("is") == "session" {
		return errors.New("want a name") // an unset shell variable does not mean the default session
	}
	v.text = text
	return v.read(text)
}
