package httpkey

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/samekey/samekey"
)

// Fingerprint returns the fingerprint of a request: two requests have the same one if and only if method, path, query,
// media type, body and conditions mean the same.
//
//   - The path is the one that the client sent, before an outer handler stripped a part of it, so it holds the route
//     and its values. It is compared by segments, and the query by its parameters in their order. Escaping does not
//     matter. The host does not count.
//   - A JSON body (application/json, and types that end in +json) is compared by its meaning, as in
//     samekey.FingerprintJSON: member order and white space do not matter, and numbers are exact.
//   - multipart/form-data is compared by its parts in their order, because the boundary changes with each attempt.
//   - Any other body is compared byte by byte, and so is a body with a Content-Encoding. A client repeats the same
//     bytes; their meaning depends on the reader (curl calls JSON a form).
//   - The media type counts with its parameters, except a boundary and JSON's charset.
//   - The conditions If-Match, If-None-Match, If-Modified-Since and If-Unmodified-Since count as they were sent. No
//     other header counts.
//
// A body that does not match its media type, and JSON that samekey.FingerprintJSON refuses, is an error.
func Fingerprint(r *http.Request, body []byte) (samekey.Fingerprint, error) {
	doc, err := document(r, body)
	if err != nil {
		return samekey.Fingerprint{}, err
	}
	fingerprint, err := samekey.FingerprintJSON(doc)
	return fingerprint, inBody(err, body)
}

// inBody replaces an error about the document by one with the position in the body.
func inBody(err error, body []byte) error {
	if err == nil {
		return nil
	}
	if _, wrong := samekey.FingerprintJSON(body); wrong != nil {
		return wrong
	}
	return err
}

// document returns the request as a JSON document, whose fingerprint is the request's. Every record holds a hash of
// this form: never change it.
func document(r *http.Request, body []byte) ([]byte, error) {
	mediaType, params := mediaTypeOf(r.Header.Get("Content-Type"))
	encoding := url.QueryEscape(strings.ToLower(strings.Join(r.Header["Content-Encoding"], ",")))
	if encoding == "identity" { // no encoding
		encoding = ""
	}
	doc := bytes.NewBuffer(make([]byte, 0, len(body)+256))
	write := func(name string, value any) {
		text, _ := json.Marshal(value) // text and maps of text, all ASCII
		doc.WriteString(`,"` + name + `":`)
		doc.Write(text)
	}
	doc.WriteString(`{"form":"samekey http 1"`)
	write("method", r.Method)
	write("path", pathOf(r))
	write("query", parametersOf(r.URL.RawQuery))
	write("type", typeOf(mediaType, params))
	write("encoding", encoding)
	if conditions := conditionsOf(r.Header); len(conditions) > 0 {
		write("if", conditions)
	}
	switch {
	case len(body) == 0:
	case encoding == "" && isJSON(mediaType):
		if !json.Valid(body) { // it could close the document and continue
			_, err := samekey.FingerprintJSON(body)
			return nil, err
		}
		doc.WriteString(`,"json":`)
		doc.Write(body)
	case encoding == "" && mediaType == "multipart/form-data":
		parts, err := partsOf(body, params["boundary"])
		if err != nil {
			return nil, err
		}
		write("parts", parts)
	default:
		write("raw", digest(body))
	}
	doc.WriteByte('}')
	return doc.Bytes(), nil
}

// conditionsOf returns the request's conditions, escaped.
func conditionsOf(header http.Header) (conditions []string) {
	for _, name := range []string{"If-Match", "If-Modified-Since", "If-None-Match", "If-Unmodified-Since"} {
		for _, value := range header[name] {
			conditions = append(conditions, name+"="+url.QueryEscape(strings.TrimSpace(value)))
		}
	}
	return conditions
}

// mediaTypeOf returns the media type and its parameters. Invalid text is compared as it is.
func mediaTypeOf(contentType string) (string, map[string]string) {
	mediaType, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return contentType, nil
	}
	return mediaType, params
}

// typeOf returns the parts of a media type that count, escaped.
func typeOf(mediaType string, params map[string]string) []string {
	parts := []string{url.QueryEscape(mediaType)}
	for _, name := range slices.Sorted(maps.Keys(params)) {
		if name == "boundary" || name == "charset" && isJSON(mediaType) {
			continue
		}
		parts = append(parts, url.QueryEscape(name)+"="+url.QueryEscape(params[name]))
	}
	return parts
}

func isJSON(mediaType string) bool {
	return mediaType == "application/json" || strings.HasPrefix(mediaType, "application/") && strings.HasSuffix(mediaType, "+json")
}

// pathOf returns the path as it was sent, with each segment escaped in one way: "%7Ea" equals "~a", and "a%2Fb" differs
// from "a/b".
func pathOf(r *http.Request) string {
	path := r.URL.EscapedPath()
	if sent, err := url.ParseRequestURI(r.RequestURI); err == nil {
		path = sent.EscapedPath()
	}
	segments := strings.Split(path, "/")
	for i, segment := range segments {
		if plain, err := url.PathUnescape(segment); err == nil {
			segments[i] = url.PathEscape(plain)
		}
	}
	return strings.Join(segments, "/")
}

// parametersOf returns a query's parameters as name=value, escaped. A parameter that cannot be decoded, which every
// reader treats differently, counts by its text.
func parametersOf(query string) []string {
	parameters := []string{}
	for part := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(part, "=")
		plainName, err := url.QueryUnescape(name)
		plainValue, err2 := url.QueryUnescape(value)
		switch {
		case part == "":
		case err != nil || err2 != nil || strings.Contains(part, ";"):
			parameters = append(parameters, url.QueryEscape(part))
		default:
			parameters = append(parameters, url.QueryEscape(plainName)+"="+url.QueryEscape(plainValue))
		}
	}
	return parameters
}

// partsOf describes each part of a multipart form.
func partsOf(body []byte, boundary string) ([][]string, error) {
	if boundary == "" {
		return nil, errForm
	}
	parts := [][]string{}
	reader := multipart.NewReader(bytes.NewReader(body), boundary)
	for {
		part, err := reader.NextRawPart()
		switch {
		case err == io.EOF: //nolint:errorlint // itself: a form that breaks off wraps it
			return parts, nil
		case err != nil:
			return nil, errForm
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return nil, errForm
		}
		row := []string{digest(content)}
		for _, name := range []string{"Content-Disposition", "Content-Type", "Content-Transfer-Encoding"} {
			row = append(row, url.QueryEscape(part.Header.Get(name)))
		}
		parts = append(parts, row)
	}
}

// errForm holds nothing of the form.
var errForm = errors.New("httpkey: the body is not the multipart form that its media type says")

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
