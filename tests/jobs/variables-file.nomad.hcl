# Variables from a file, and one of them from the environment.
# before: printf 'image_tag = "1.4"\nports = { http = 8080, admin = 8081 }\n' > $DIR/prod.vars
# args: --var-file $DIR/prod.vars
# env: NOMAD_VAR_stage=prod
# prints: prod 1.4 admin=8081,http=8080

variable "image_tag" {
  type = string
}

variable "ports" {
  type = map(number)
}

variable "stage" {
  type    = string
  default = "dev"
}

job "vars" {
  type = "batch"

  group "vars" {
    task "show" {
      driver = "exec"

      config {
        command = "/bin/echo"
        args    = [var.stage, var.image_tag, join(",", [for name, port in var.ports : "${name}=${port}"])]
      }
    }
  }
}
