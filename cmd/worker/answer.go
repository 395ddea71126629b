package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http/httputil"
	"net/textproto"
	"regexp"
	"strconv"
	"strings"

	"github.com/samekey/samekey/dispatcher/httpvendor"
)

var statusLine = regexp.MustCompile(`^HTTP/[0-9](?:\.[0-9])? ([0-9]{3})(?: .*)?$`)

// parseAnswer reads an answer as curl -i saves it. The body is what follows the headers of the last answer: curl decodes
// chunks, and with --compressed also gzip, and leaves the headers as they were. What is still encoded is decoded here.
func parseAnswer(data []byte) (answer httpvendor.Answer, warning string, err error) {
	for first := true; first || beginsAnswer(data); first = false {
		reader := textproto.NewReader(bufio.NewReader(bytes.NewReader(data)))
		line, err := reader.ReadLine()
		if err != nil {
			return answer, "", errors.New("is empty: it must begin with a status line such as HTTP/1.1 200 OK")
		}
		match := statusLine.FindStringSubmatch(line)
		if match == nil {
			return answer, "", errors.New("does not begin with a status line such as HTTP/1.1 200 OK: save the answer with curl -i")
		}
		header, err := reader.ReadMIMEHeader()
		if err != nil && !errors.Is(err, io.EOF) {
			return answer, "", errors.New("has a line in its headers that is not a header: an empty line must be before the body")
		}
		answer.Status, _ = strconv.Atoi(match[1])
		answer.Header = map[string][]string(header)
		if data, err = io.ReadAll(reader.R); err != nil {
			return answer, "", err
		}
	}
	if answer.Status < 200 {
		return answer, "", fmt.Errorf("has no answer after the status %d", answer.Status)
	}
	body := decode(answer, data)
	length, err := strconv.Atoi(answer.Header.Get("Content-Length"))
	if err == nil && length != len(body) && answer.Header.Get("Content-Encoding") == "" {
		warning = fmt.Sprintf("the body has %d bytes, not %d as Content-Length says: give -broken-off for an answer that broke off", len(body), length)
	}
	answer.Body = body
	return answer, warning, nil
}

// beginsAnswer reports whether a text begins with a status line.
func beginsAnswer(data []byte) bool {
	line, _, _ := bytes.Cut(data, []byte("\n"))
	return statusLine.Match(bytes.TrimSuffix(line, []byte("\r")))
}

// decode undoes chunks and gzip where the headers name them and the body has them.
func decode(answer httpvendor.Answer, body []byte) []byte {
	if strings.EqualFold(answer.Header.Get("Transfer-Encoding"), "chunked") {
		if text, err := io.ReadAll(httputil.NewChunkedReader(bytes.NewReader(body))); err == nil {
			body = text
		}
	}
	if strings.EqualFold(answer.Header.Get("Content-Encoding"), "gzip") {
		if r, err := gzip.NewReader(bytes.NewReader(body)); err == nil {
			if text, err := io.ReadAll(io.LimitReader(r, maxAnswer)); err == nil {
				body = text
			}
		}
	}
	return body
}
