package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"
)

// part is one thing that an image contains, as its bill of materials lists it.
type part struct {
	kind    string // golang, deb or pypi: the type of its purl
	name    string // below the namespace of the purl
	version string
	arch    string // of a Debian package
	sha256  string // of a file that was downloaded, where there is one
}

// purl is the package URL, which scanners look faults up by.
func (p part) purl(suite string) string {
	version := url.QueryEscape(p.version) // a plus sign is %2B in purls, too
	if p.kind == "deb" {
		return "pkg:deb/debian/" + p.name + "@" + version + "?arch=" + p.arch + "&distro=" + suite
	}
	return "pkg:" + p.kind + "/" + p.name + "@" + version
}

// goParts are the modules that a binary was linked of, as the linker wrote them into it.
func goParts(binary []byte, version string) ([]part, error) {
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, err
	}
	parts := []part{
		{kind: "golang", name: info.Main.Path, version: version},
		{kind: "golang", name: "stdlib", version: strings.TrimPrefix(info.GoVersion, "go")},
	}
	for _, m := range info.Deps {
		m = cmp.Or(m.Replace, m)
		parts = append(parts, part{kind: "golang", name: m.Path, version: m.Version})
	}
	return parts, nil
}

// debParts are the packages that are installed according to dpkg's status file.
func debParts(status []byte) []part {
	var parts []part
	for stanza := range strings.SplitSeq(string(status), "\n\n") {
		fields := make(map[string]string)
		for line := range strings.SplitSeq(stanza, "\n") {
			if name, value, ok := strings.Cut(line, ": "); ok && !strings.HasPrefix(line, " ") {
				fields[name] = value
			}
		}
		if strings.HasSuffix(fields["Status"], " installed") {
			parts = append(parts, part{kind: "deb", name: fields["Package"], version: fields["Version"], arch: fields["Architecture"]})
		}
	}
	return parts
}

// What of SPDX 2.3 we say.
type (
	spdxDocument struct {
		Version       string             `json:"spdxVersion"`
		License       string             `json:"dataLicense"`
		ID            string             `json:"SPDXID"`
		Name          string             `json:"name"`
		Namespace     string             `json:"documentNamespace"`
		Creation      spdxCreation       `json:"creationInfo"`
		Packages      []spdxPackage      `json:"packages"`
		Relationships []spdxRelationship `json:"relationships"`
	}
	spdxCreation struct {
		Created  string   `json:"created"`
		Creators []string `json:"creators"`
	}
	spdxPackage struct {
		ID        string          `json:"SPDXID"`
		Name      string          `json:"name"`
		Version   string          `json:"versionInfo"`
		Location  string          `json:"downloadLocation"`
		Analyzed  bool            `json:"filesAnalyzed"`
		Concluded string          `json:"licenseConcluded"`
		Declared  string          `json:"licenseDeclared"`
		Copyright string          `json:"copyrightText"`
		Purpose   string          `json:"primaryPackagePurpose,omitempty"`
		Checksums []spdxChecksum  `json:"checksums,omitempty"`
		Refs      []spdxReference `json:"externalRefs,omitempty"`
	}
	spdxChecksum struct {
		Algorithm string `json:"algorithm"`
		Value     string `json:"checksumValue"`
	}
	spdxReference struct {
		Category string `json:"referenceCategory"`
		Type     string `json:"referenceType"`
		Locator  string `json:"referenceLocator"`
	}
	spdxRelationship struct {
		Of   string `json:"spdxElementId"`
		Kind string `json:"relationshipType"`
		To   string `json:"relatedSpdxElement"`
	}
)

const unsaid = "NOASSERTION"

var notInID = regexp.MustCompile(`[^A-Za-z0-9.]+`)

// sbom is the bill of materials of an image, as SPDX. Licenses are not looked into: those
// of Debian are in /usr/share/doc of the image.
func (b *build) sbom(name string, parts []part) ([]byte, error) {
	whole := spdxPackage{
		ID: "SPDXRef-image", Name: name, Version: b.version, Purpose: "CONTAINER",
		Location: unsaid, Concluded: unsaid, Declared: unsaid, Copyright: unsaid,
	}
	doc := spdxDocument{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: name + "-" + b.version,
		Creation:      spdxCreation{Created: b.epoch.Format(time.RFC3339), Creators: []string{"Tool: toolmesh-k8s-images"}},
		Packages:      []spdxPackage{whole},
		Relationships: []spdxRelationship{{"SPDXRef-DOCUMENT", "DESCRIBES", whole.ID}},
	}
	purls := make(map[string]bool)
	for _, p := range slices.SortedFunc(slices.Values(parts), func(a, b part) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.name, b.name), cmp.Compare(a.version, b.version))
	}) {
		purl := p.purl(b.suite)
		if purls[purl] {
			continue // of two binaries
		}
		purls[purl] = true
		one := whole
		one.ID = fmt.Sprintf("SPDXRef-%s-%s", p.kind, notInID.ReplaceAllString(p.name+"-"+p.version, "-"))
		one.Name, one.Version, one.Purpose = p.name, p.version, ""
		one.Refs = []spdxReference{{"PACKAGE-MANAGER", "purl", purl}}
		if p.sha256 != "" {
			one.Checksums = []spdxChecksum{{"SHA256", p.sha256}}
		}
		doc.Packages = append(doc.Packages, one)
		doc.Relationships = append(doc.Relationships, spdxRelationship{whole.ID, "CONTAINS", one.ID})
	}
	// A name for this document and no other, without chance in it.
	said, err := json.Marshal(doc)
	if err != nil {
		return nil, err
	}
	doc.Namespace = fmt.Sprintf("urn:toolmesh:spdx:%s:%x", name, sha256.Sum256(said))
	said, err = json.MarshalIndent(doc, "", " ")
	return append(said, '\n'), err
}
