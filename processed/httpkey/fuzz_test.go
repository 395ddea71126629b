package httpkey

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/samekey/samekey"
	"github.com/samekey/samekey/internal/keyheader"
)

// FuzzKeyHeader reads any header twice: what is taken for a key is one by samekey's rules, and means the same bare and
// quoted.
func FuzzKeyHeader(f *testing.F) {
	for _, value := range []string{
		"", "a", `"a"`, `"a`, `"a\"b"`, `"a\\"`, `"a";v=1`, `"a", "b"`, "a, b", "a;b", "?1", ":YQ==:", "1.5", "@1", `%"a"`, `a"`,
		" a", `" a"`, "\x00", "\xff", "k\x7f", strings.Repeat("k", 255), strings.Repeat("k", 256), `"` + strings.Repeat("k", 255) + `"`,
	} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, header string) {
		value, err := keyheader.Value([]string{header})
		if err != nil {
			if problem := problemHeader(err, "Idempotency-Key"); value != "" || problem.Status != 400 || problem.Code == codeKeyMissing {
				t.Errorf("%q: value %q beside the problem %+v", header, value, problem)
			}
			return
		}
		key, err := samekey.NewKey(value, "acme", "op")
		if err != nil {
			return // 400 as well, with samekey's reason
		}
		quoted, err := keyheader.Quoted(key.Value)
		if err != nil {
			t.Fatalf("%q is a key, and no string of RFC 9651: %v", key.Value, err)
		}
		if again, err := keyheader.Value([]string{quoted}); err != nil || again != value {
			t.Errorf("%q is %q, and quoted %q", header, value, again)
		}
		if !strings.HasPrefix(header, `"`) && value != header {
			t.Errorf("%q was changed to %q", header, value)
		}
		if _, err := keyheader.Value([]string{header, header}); err == nil {
			t.Errorf("%q twice is one key", header)
		}
		if _, err := keyheader.Value([]string{header + ", " + header}); err == nil {
			t.Errorf("a list of %q is one key", header)
		}
	})
}

// FuzzFingerprint respells each request, which keeps its fingerprint, and then changes its meaning, which does not.
func FuzzFingerprint(f *testing.F) {
	for _, path := range []string{"/", "/a/b", "/a%2Fb", "/%7Ea/", "/é", "//a", "/a;b", "/%25"} {
		for _, query := range []string{"", "a=1", "a=1&b=2&a=3", "b=%ff&a", "a=1;b", "%zz", "a=+"} {
			f.Add(path, query, []byte(`{"n":9007199254740993,"s":"x<y","t":[1,null,{"u":"\u00e9"}]}`), int64(1))
		}
	}
	f.Add("/", "", []byte(`[]`), int64(-5))
	f.Add("/", "", []byte(``), int64(0))
	f.Add("/", "", []byte(`"tea"`), int64(9007199254740993))
	f.Fuzz(func(t *testing.T, path, query string, body []byte, number int64) {
		target, err := url.ParseRequestURI(path)
		if err != nil || !strings.HasPrefix(path, "/") || target.RawQuery != "" {
			return
		}
		target.RawQuery = query
		body = slices.Concat([]byte(`[`+fmt.Sprint(number)+`,`), body, []byte(`]`))
		of := func(method string, target *url.URL, mediaType string, body []byte) samekey.Fingerprint {
			t.Helper()
			r := &http.Request{Method: method, URL: target, Header: http.Header{"Content-Type": {mediaType}}}
			fingerprint, err := Fingerprint(r, body)
			if err != nil {
				return samekey.Fingerprint{}
			}
			return fingerprint
		}
		want := of("POST", target, "application/json", body)
		if want == (samekey.Fingerprint{}) {
			if json.Valid(body) {
				if _, err := samekey.FingerprintJSON(body); err == nil {
					t.Errorf("%s %s has no fingerprint", target, body)
				}
			}
			return
		}
		var indented bytes.Buffer
		if err := json.Indent(&indented, body, "\n", "\t"); err != nil {
			t.Fatalf("%q has a fingerprint, and is no JSON: %v", body, err)
		}
		exact := bytes.Replace(indented.Bytes(), []byte(fmt.Sprint(number)), []byte(fmt.Sprint(number)+".000"), 1)
		if again := of("POST", respelled(target), "Application/JSON;charset=utf-8", exact); again != want {
			t.Errorf("%s and %s, %q and %q mean the same and have two fingerprints", target, respelled(target), body, exact)
		}
		other := bytes.Replace(body, []byte(fmt.Sprint(number)), []byte(fmt.Sprint(number)+".001"), 1)
		longer, asked := *target, *target
		longer.Path, longer.RawPath = target.Path+"a", ""
		asked.RawQuery += "&dry=1"
		for what, changed := range map[string]samekey.Fingerprint{
			"another number":     of("POST", target, "application/json", other),
			"another method":     of("PATCH", target, "application/json", body),
			"another path":       of("POST", &longer, "application/json", body),
			"another query":      of("POST", &asked, "application/json", body),
			"another media type": of("POST", target, "application/merge-patch+json", body),
			"bytes":              of("POST", target, "text/plain", body),
		} {
			if changed == want || changed == (samekey.Fingerprint{}) {
				t.Errorf("%s %s: %s has the same fingerprint, or none", target, body, what)
			}
		}
	})
}

// respelled escapes every byte of the path's segments and of the query.
func respelled(u *url.URL) *url.URL {
	every := func(text string) string {
		var b strings.Builder
		for i := range len(text) {
			fmt.Fprintf(&b, "%%%02x", text[i])
		}
		return b.String()
	}
	segments := strings.Split(u.EscapedPath(), "/")
	for i, segment := range segments {
		if plain, err := url.PathUnescape(segment); err == nil {
			segments[i] = every(plain)
		}
	}
	raw := strings.Join(segments, "/")
	again := &url.URL{Path: u.Path, RawPath: raw, RawQuery: u.RawQuery}
	if _, err := url.ParseQuery(u.RawQuery); err != nil {
		return again
	}
	var parameters []string
	for parameter := range strings.SplitSeq(u.RawQuery, "&") {
		name, value, _ := strings.Cut(parameter, "=")
		name, _ = url.QueryUnescape(name)
		value, _ = url.QueryUnescape(value)
		if parameter != "" {
			parameters = append(parameters, every(name)+"="+every(value))
		}
	}
	again.RawQuery = strings.Join(parameters, "&")
	return again
}
