variable "count" {
  type = number
  default = 2
}
variable "names" {
  type = list(string)
  default = ["a", "b"]
}
locals {
  upper = [for n in var.names : upper(n)]
}
job "language-variables" {
  datacenters = var.names
  meta {
    all = join(",", local.upper)
    cond = var.count > 1 ? "many" : "one"
  }
  dynamic "group" {
    for_each = var.names
    labels = ["group-${group.value}"]
    content {
      count = var.count
      task "t" {
        driver = "raw_exec"
        config {
          command = "/bin/echo"
          args = [group.value, "${group.key}"]
        }
      }
    }
  }
}
