# An artifact brings a template's text, which lists what it is told.
# before: printf '{{ range $i, $n := parseJSON "[\\"a\\",\\"b\\"]" }}{{ if $i }},{{ end }}{{ $n | toUpper }}{{ end }}' > $DIR/list.tpl
# args: --var dir=$DIR
# prints: A,B

variable "dir" {
  type = string
}

job "list" {
  type = "batch"

  group "list" {
    task "list" {
      driver = "exec"

      artifact {
        source      = "${var.dir}/list.tpl"
        destination = "local/list.tpl"
        mode        = "file"
      }

      template {
        source      = "local/list.tpl"
        destination = "local/list"
      }

      config {
        command = "/bin/cat"
        args    = ["local/list"]
      }
    }
  }
}
