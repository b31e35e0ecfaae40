# A value that the file forbids is refused with the file's own words.
# args: --var replicas=9
# status: 125
# prints: at most five replicas

variable "replicas" {
  type    = number
  default = 1

  validation {
    condition     = var.replicas <= 5
    error_message = "Choose at most five replicas."
  }
}

job "web" {
  group "web" {
    count = var.replicas

    task "web" {
      driver = "exec"

      config {
        command = "/bin/true"
      }
    }
  }
}
