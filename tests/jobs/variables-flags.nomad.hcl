# Variables with types and defaults, set by flags.
# args: --var replicas=2 --var hosts=["a","b"] --var region=eu
# prints: eu: a,b x 2 at 0.5

variable "region" {
  type        = string
  description = "Where it runs."
}

variable "replicas" {
  type    = number
  default = 1
}

variable "hosts" {
  type = list(string)
}

variable "limits" {
  type = object({ cpu = number, burst = bool })
  default = {
    cpu   = 0.5
    burst = false
  }
}

job "vars" {
  type = "batch"

  group "vars" {
    task "show" {
      driver = "exec"

      config {
        command = "/bin/echo"
        args    = ["${var.region}: ${join(",", var.hosts)} x ${var.replicas} at ${var.limits.cpu}"]
      }
    }
  }
}
